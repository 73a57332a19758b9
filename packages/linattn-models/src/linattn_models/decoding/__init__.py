"""Decoding: sequences drawn token by token, and steps compiled to be fast.

generate     the mixin that gives models `generate` and `stream`; chooses the predictor
packed       a cache of compiled decoders, packed again when their models have changed
compile      `compile_decoder`: a native decoder on the CPU, recorded steps on a GPU
native       a compiled decoder with the interface of the model; draws tokens inside its steps
vectors      the same for a model of vectors
stepping     prefill of a compiled decoder from a state, step by step
drawing      `generate` and `stream`: their arguments
runs         the loop over tokens
stopping     which sequences continue, and the states of those that have ended
filters      which tokens may be drawn: top_k, top_p, min_p
beams        `beam_search`: the likeliest sequences
predictors   predict the next token by a step from a state, or by running all tokens again
prompts      prefixes, also of different lengths, and the sequences made from them
sampling     temperature, generator, and the check for NaN
graph        a decoder whose steps are CUDA graphs, in slots of memory
recording    records a step and runs it again
torch_step   the step that is recorded
model        the protocols of the models that can be decoded
"""

from linattn_models.decoding.beams import Hypotheses
from linattn_models.decoding.compile import compile_decoder
from linattn_models.decoding.generate import DECODERS, Generation, choose_decoder, choose_method
from linattn_models.decoding.native import CompiledDecoder, FusedPredictor
from linattn_models.decoding.prompts import Prompt, check_length, default_length
from linattn_models.decoding.sampling import Sampling
from linattn_models.decoding.vectors import CompiledTransformer

__all__ = [
    "DECODERS",
    "CompiledDecoder",
    "CompiledTransformer",
    "FusedPredictor",
    "Generation",
    "Hypotheses",
    "Prompt",
    "Sampling",
    "check_length",
    "choose_decoder",
    "choose_method",
    "compile_decoder",
    "default_length",
]
