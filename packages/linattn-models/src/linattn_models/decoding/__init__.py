"""Decoding: sequences drawn token by token, and steps compiled to be fast.

compiled              `compile_decoder`; what makes steps: the model or a decoder, which is cached
engine                requests that join and leave a batch between steps
requests              what is asked of such a batch, and what comes out
compiled_decoder      decoders of tokens with packed weights and the interface of the model
compiled_transformer  those of vectors
decoder_file          the description of a decoder as one file
generate              `generate`, `stream` and `beam_search`, and their loop
graph                 a decoder whose steps are CUDA graphs, recorded in slots of memory
beams                 the likeliest sequences
stopping              what ends sequences: stop tokens and strings, and their last token
rows                  the rows of a batch, and what makes their steps
prompts               prefixes, also of different lengths, and the sequences made from them
sampling              settings of draws, the draws of rows, and the check for NaN
philox                random numbers of a row and a position
texts                 the text of tokens as they come
torch_step            the step that is recorded
recorders             what records it, and runs it again
"""

from linattn_models.decoding.beams import Hypotheses
from linattn_models.decoding.compiled import (
    DECODERS,
    choose_decoder,
    choose_method,
    choose_source,
    compile_decoder,
)
from linattn_models.decoding.compiled_decoder import CompiledDecoder
from linattn_models.decoding.compiled_transformer import CompiledTransformer
from linattn_models.decoding.engine import ContinuousBatch
from linattn_models.decoding.generate import GenerationMixin, TokenModel, TokenStream
from linattn_models.decoding.prompts import Prompt, check_length, default_length
from linattn_models.decoding.requests import Output, Request, TokenLogprobs
from linattn_models.decoding.rows import Stepper
from linattn_models.decoding.sampling import Draws, SamplingParams, Settings, start_draws
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
    "check_length",
    "choose_decoder",
    "choose_method",
    "choose_source",
    "compile_decoder",
    "default_length",
    "start_draws",
]
