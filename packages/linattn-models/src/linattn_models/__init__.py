"""Transformers that train in parallel and generate as RNNs, with linear or softmax attention.

TransformerConfig            the shape of the layers
Transformer                  vectors in, vectors out: forward, prefill, step
AutoregressiveTransformer    tokens in, a distribution over the next one out: loss, generate
Categorical, MixtureOfLogistics     the distributions
compile_decoder              a model's weights packed, a whole step one native call or CUDA graph
DecodingState, KeyValueCache        what is remembered between two steps
save, load, read_config      one folder: config.json and model.safetensors
"""

from linattn_core.decoding import CannotCompile
from linattn_models.autoregressive import AutoregressiveTransformer
from linattn_models.compiled import CompiledDecoder, CompiledTransformer
from linattn_models.compiling import compile_decoder
from linattn_models.config import TransformerConfig
from linattn_models.heads import Categorical, Head, MixtureOfLogistics, head_from_dict
from linattn_models.serialization import load, read_config, save
from linattn_models.state import DecodingState, KeyValueCache
from linattn_models.throughput import Throughput, generation_throughput
from linattn_models.transformer import Transformer

__version__ = "0.1.0"

__all__ = [
    "AutoregressiveTransformer",
    "CannotCompile",
    "Categorical",
    "CompiledDecoder",
    "CompiledTransformer",
    "DecodingState",
    "Head",
    "KeyValueCache",
    "MixtureOfLogistics",
    "Throughput",
    "Transformer",
    "TransformerConfig",
    "compile_decoder",
    "generation_throughput",
    "head_from_dict",
    "load",
    "read_config",
    "save",
]
