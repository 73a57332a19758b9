"""Linear attention under one name: what people use first of linattn-core and linattn-models.

Everything else is in those packages: `linattn_core`, `linattn_models`, `linattn_models.training`,
`linattn_models.huggingface`. Each call takes the fastest of the installed kernels that accepts it:
those of `linattn_cpu`, `linattn_cuda` or `linattn_triton`.
"""

from linattn_core import (
    LinearAttentionState,
    backends,
    explain,
    get_feature_map,
    linear_attention,
    linear_attention_step,
    register_feature_map,
    use_backend,
)
from linattn_models import (
    AutoregressiveTransformer,
    ByteTokenizer,
    CharacterTokenizer,
    EncoderAttention,
    Linear,
    LinearAttention,
    Softmax,
    Transformer,
    TransformerConfig,
    compile_decoder,
    export_decoder,
    load,
    load_decoder,
    save,
)

__version__ = "0.1.0"

__all__ = [
    "AutoregressiveTransformer",
    "ByteTokenizer",
    "CharacterTokenizer",
    "EncoderAttention",
    "Linear",
    "LinearAttention",
    "LinearAttentionState",
    "Softmax",
    "Transformer",
    "TransformerConfig",
    "backends",
    "compile_decoder",
    "explain",
    "export_decoder",
    "get_feature_map",
    "linear_attention",
    "linear_attention_step",
    "load",
    "load_decoder",
    "register_feature_map",
    "save",
    "use_backend",
]
