"""Decoding: sequences drawn token by token, and steps compiled to be fast.

generate     `generate` and `stream`, which models inherit; chooses what predicts the tokens
packed       decoders kept for their models, packed again when these have changed
compile      `compile_decoder`: a native decoder on the CPU, recorded steps on a GPU
native       a compiled decoder with the interface of the model; draws fused into steps
drawing      the arguments of `generate`, and the loop over the tokens
predictors   the next token by a step from a state, or by a run of all tokens
prompts      prefixes, of different lengths too, and the sequences that grow from them
sampling     temperature and generator
graph        a decoder whose steps are CUDA graphs, in slots of memory
recording    what records and runs them again
torch_step   the step that is recorded
model        what all this knows of a model
"""

from linattn_models.decoding.compile import compile_decoder
from linattn_models.decoding.generate import DECODERS, Generation, choose_decoder, choose_method
from linattn_models.decoding.native import CompiledDecoder, CompiledTransformer, FusedPredictor
from linattn_models.decoding.prompts import Prompt, check_length
from linattn_models.decoding.sampling import Sampling

__all__ = [
    "DECODERS",
    "CompiledDecoder",
    "CompiledTransformer",
    "FusedPredictor",
    "Generation",
    "Prompt",
    "Sampling",
    "check_length",
    "choose_decoder",
    "choose_method",
    "compile_decoder",
]
