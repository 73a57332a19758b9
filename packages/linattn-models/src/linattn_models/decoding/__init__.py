"""Decoding: sequences drawn token by token, and steps compiled to be fast.

generate          `generate`, `stream` and `beam_search`
prompts           prefixes, also of different lengths, and the sequences made from them
sampling          settings of draws, the draws of rows, and the check for NaN
philox            random numbers of a row and a position
stopping          the loop of a generation, and what ends its rows
rows              the rows of a batch, and what makes their steps
engine            requests that join and leave a batch between steps
requests          what is asked of such a batch, and what comes out
beams             the likeliest sequences
compiled          `compile_decoder`; what makes steps: the model or a decoder, which is cached
compiled_decoder  decoders with packed weights and the interface of the model
decoder_file      the description of a decoder as one file
torch_step        a model in few torch operations, which a graph records
graph             a decoder whose steps are CUDA graphs, recorded in slots of memory
texts             the text of tokens as they come
"""

from linattn_models.decoding.beams import Hypotheses
from linattn_models.decoding.compiled import (
    DECODERS,
    choose_decoder,
    choose_method,
    choose_source,
    compile_decoder,
)
from linattn_models.decoding.compiled_decoder import CompiledDecoder, CompiledTransformer
from linattn_models.decoding.engine import ContinuousBatch
from linattn_models.decoding.generate import GenerationMixin, TokenModel
from linattn_models.decoding.prompts import Prompt, read_prompt
from linattn_models.decoding.requests import Output, Request, TokenLogprobs
from linattn_models.decoding.rows import Stepper
from linattn_models.decoding.sampling import Draws, SamplingParams, Settings, start_draws
from linattn_models.decoding.stopping import TokenStream
from linattn_models.heads.filters import Filters

__all__ = [
    "DECODERS",
    "CompiledDecoder",
    "CompiledTransformer",
    "ContinuousBatch",
    "Draws",
    "Filters",
    "GenerationMixin",
    "Hypotheses",
    "Output",
    "Prompt",
    "Request",
    "SamplingParams",
    "Settings",
    "Stepper",
    "TokenLogprobs",
    "TokenModel",
    "TokenStream",
    "choose_decoder",
    "choose_method",
    "choose_source",
    "compile_decoder",
    "read_prompt",
    "start_draws",
]
