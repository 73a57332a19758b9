"""Transformers that train in parallel and generate as RNNs, and the attentions to compare with.

docs/names.md says for each name what it is for.
"""

from linattn_core.decoder_spec import CannotCompile
from linattn_models.attention import (
    Attention,
    EncoderAttention,
    Linear,
    LinearAttention,
    Lsh,
    Mixer,
    Softmax,
    draw_rotations,
    lsh_attention,
    register_attention,
)
from linattn_models.ctc import (
    AlignedPhone,
    BeamSearch,
    CTCBiLSTM,
    CTCBiLSTMConfig,
    CTCTransformer,
    CTCTransformerConfig,
    Hypothesis,
    NGram,
    StreamState,
    ctc_align,
    ctc_beam_search,
    ctc_frames_needed,
    ctc_greedy,
    ctc_loss,
    initial_stream_state,
    stream_flush,
    stream_step,
)
from linattn_models.decoding import (
    CompiledDecoder,
    CompiledTransformer,
    ContinuousBatch,
    Hypotheses,
    Output,
    Request,
    SamplingParams,
    TokenLogprobs,
    TokenStream,
    compile_decoder,
)
from linattn_models.heads import Categorical, Head, MixtureOfLogistics, head_from_dict
from linattn_models.heads.tokenizer import ByteTokenizer, CharacterTokenizer
from linattn_models.layers.config import TransformerConfig
from linattn_models.layers.transformer import Transformer
from linattn_models.saving import export_decoder, load, load_decoder, read_config, save
from linattn_models.state import DecodingState, KeyValueCache, WindowCache
from linattn_models.tokens.autoregressive import AutoregressiveTransformer
from linattn_models.tokens.seq2seq import Seq2SeqTransformer

__version__ = "0.1.0"

__all__ = [
    "AlignedPhone",
    "Attention",
    "AutoregressiveTransformer",
    "BeamSearch",
    "ByteTokenizer",
    "CTCBiLSTM",
    "CTCBiLSTMConfig",
    "CTCTransformer",
    "CTCTransformerConfig",
    "CannotCompile",
    "Categorical",
    "CharacterTokenizer",
    "CompiledDecoder",
    "CompiledTransformer",
    "ContinuousBatch",
    "DecodingState",
    "EncoderAttention",
    "Head",
    "Hypotheses",
    "Hypothesis",
    "KeyValueCache",
    "Linear",
    "LinearAttention",
    "Lsh",
    "Mixer",
    "MixtureOfLogistics",
    "NGram",
    "Output",
    "Request",
    "SamplingParams",
    "Seq2SeqTransformer",
    "Softmax",
    "StreamState",
    "TokenLogprobs",
    "TokenStream",
    "Transformer",
    "TransformerConfig",
    "WindowCache",
    "compile_decoder",
    "ctc_align",
    "ctc_beam_search",
    "ctc_frames_needed",
    "ctc_greedy",
    "ctc_loss",
    "draw_rotations",
    "export_decoder",
    "head_from_dict",
    "initial_stream_state",
    "load",
    "load_decoder",
    "lsh_attention",
    "read_config",
    "register_attention",
    "save",
    "stream_flush",
    "stream_step",
]
