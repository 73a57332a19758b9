"""Connectionist temporal classification: from frames of sound to phones, without an alignment.

The classes are the blank, `BLANK` = 0, and the phones, 1 to their number.
"""

from __future__ import annotations

from linattn_models.ctc.bilstm import CTCBiLSTM
from linattn_models.ctc.config import CTCBiLSTMConfig, CTCTransformerConfig
from linattn_models.ctc.labels import BLANK, ctc_greedy
from linattn_models.ctc.loss import ctc_frames_needed, ctc_loss
from linattn_models.ctc.transformer import CTCTransformer

__all__ = [
    "BLANK",
    "CTCBiLSTM",
    "CTCBiLSTMConfig",
    "CTCTransformer",
    "CTCTransformerConfig",
    "ctc_frames_needed",
    "ctc_greedy",
    "ctc_loss",
]
