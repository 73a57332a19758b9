"""Connectionist temporal classification: from frames of sound to phones, without an alignment.

The classes are the blank, `BLANK` = 0, and the phones, 1 to their number.
"""

from __future__ import annotations

from linattn_models.ctc.alignment import BLANK, AlignedPhone, ctc_align, ctc_greedy
from linattn_models.ctc.beam_search import BeamSearch, Hypothesis, ctc_beam_search
from linattn_models.ctc.bilstm import CTCBiLSTM
from linattn_models.ctc.config import CTCBiLSTMConfig, CTCTransformerConfig
from linattn_models.ctc.loss import ctc_frames_needed, ctc_loss
from linattn_models.ctc.ngram import NGram
from linattn_models.ctc.streaming import (
    StreamState,
    StreamTensors,
    initial_stream_state,
    stream_flush,
    stream_step,
)
from linattn_models.ctc.transformer import CTCTransformer

__all__ = [
    "BLANK",
    "AlignedPhone",
    "BeamSearch",
    "CTCBiLSTM",
    "CTCBiLSTMConfig",
    "CTCTransformer",
    "CTCTransformerConfig",
    "Hypothesis",
    "NGram",
    "StreamState",
    "StreamTensors",
    "ctc_align",
    "ctc_beam_search",
    "ctc_frames_needed",
    "ctc_greedy",
    "ctc_loss",
    "initial_stream_state",
    "stream_flush",
    "stream_step",
]
