"""Transformers that train in parallel and generate as RNNs, and the attentions to compare with.

TransformerConfig            the shape of the layers
Linear, Softmax, Lsh         the configurations of their attention
register_attention           makes another one known, from its Attention and Mixer
Transformer                  vectors in, vectors out: forward, prefill, step
AutoregressiveTransformer    tokens in, a distribution over the next one out: loss, generate
Categorical, MixtureOfLogistics     the distributions
LinearAttention              a layer that replaces torch.nn.MultiheadAttention
EncoderAttention             the same inside nn.TransformerEncoder and other modules of PyTorch
lsh_attention                Reformer's attention, used by "lsh" models
Seq2SeqTransformer           source tokens in, target tokens out
CTCTransformer, CTCTransformerConfig    a recognizer of speech: log-probabilities over phones
CTCBiLSTM, CTCBiLSTMConfig   its recurrent baseline
ctc_loss, ctc_frames_needed  their loss, and the frames that a transcript needs
ctc_greedy, ctc_beam_search  decoding into phones, greedy or by prefix beam search
BeamSearch                   prefix beam search, fed frame by frame
ctc_align                    the frames of each phone
stream_step, stream_flush    a causal recognizer on frames as they arrive, from a StreamState
NGram                        a language model over phones; reads and writes ARPA files
compile_decoder              packs a model's weights: a step is one native call or CUDA graph
ContinuousBatch              requests that join and leave a batch between steps
Request, SamplingParams, Output    what it is asked, and what comes out, with TokenLogprobs
Hypotheses, TokenStream      what beam_search and stream return
DecodingState                the state between two steps
KeyValueCache, WindowCache   the state of a layer with softmax, or with a window
save, load, read_config      one folder: config.json, model.safetensors, tokenizer.json
ByteTokenizer, CharacterTokenizer    from text to tokens and back
load_decoder                 the compiled decoder of a saved model, also from weights in fewer bits
export_decoder               a decoder as one file, also for programs without Python
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
