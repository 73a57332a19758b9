"""Decoding: sequences drawn token by token, and steps compiled to be fast.

batch                 requests that join and leave a batch between steps
choose                what draws: the model, or a compiled decoder, of which there is a cache
compile               `compile_decoder`
compiled_decoder      decoders of tokens with packed weights and the interface of the model
compiled_transformer  those of vectors
generation            the mixin with `generate`, `stream` and `beam_search`
graph                 a decoder whose steps are CUDA graphs, recorded in slots of memory
predictors            the next token by a step of the model, or by running all tokens again
stream                what `stream` returns
beams                 the likeliest sequences
loop                  the loop over tokens, and the states of rows that end
stopping              which rows continue: stop tokens and stop strings
prompts               prefixes, also of different lengths, and the sequences made from them
sampling              settings of draws, the draws of rows, and the check for NaN
philox                random numbers of a row and a position
texts                 the text of tokens as they come
torch_step            the step that is recorded
recorders             what records it, and runs it again
"""

from linattn_models.decoding.batch import ContinuousBatch, Output, Request
from linattn_models.decoding.beams import Hypotheses
from linattn_models.decoding.choose import (
    DECODERS,
    choose_decoder,
    choose_method,
    choose_predictor,
)
from linattn_models.decoding.compile import compile_decoder
from linattn_models.decoding.compiled_decoder import CompiledDecoder, FusedPredictor
from linattn_models.decoding.compiled_transformer import CompiledTransformer
from linattn_models.decoding.generation import GenerationMixin
from linattn_models.decoding.loop import Start
from linattn_models.decoding.prompts import Prompt, check_length, default_length
from linattn_models.decoding.sampling import Draws, SamplingParams, Settings, start_draws
from linattn_models.decoding.stream import TokenStream
from linattn_models.heads.filters import Filters

__all__ = [
    "DECODERS",
    "CompiledDecoder",
    "CompiledTransformer",
    "ContinuousBatch",
    "Draws",
    "Filters",
    "FusedPredictor",
    "GenerationMixin",
    "Hypotheses",
    "Output",
    "Prompt",
    "Request",
    "SamplingParams",
    "Settings",
    "Start",
    "TokenStream",
    "check_length",
    "choose_decoder",
    "choose_method",
    "choose_predictor",
    "compile_decoder",
    "default_length",
    "start_draws",
]
