"""Connectionist temporal classification: from frames of sound to phones, without an alignment.

The classes are the blank, `BLANK` = 0, and the phones, 1 to their number.
"""

from __future__ import annotations

from linattn_models.ctc.bilstm import CTCBiLSTM
from linattn_models.ctc.config import CTCBiLSTMConfig
from linattn_models.ctc.labels import BLANK, ctc_greedy
from linattn_models.ctc.loss import ctc_loss

__all__ = ["BLANK", "CTCBiLSTM", "CTCBiLSTMConfig", "ctc_greedy", "ctc_loss"]
