"""The recurrent baseline for speech: an LSTM of both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from linattn_models.ctc.config import CTCBiLSTMConfig
from linattn_models.ctc.recognizer import (
    Recognizer,
    blank_past,
    check_frames,
    classified,
    past_lengths,
)
from linattn_models.validation import exact_keys, lengths_within


class CTCBiLSTM(Recognizer):
    """log p(class | all frames) for every frame, by bidirectional layers of LSTM.

    Args:
        config: the layers.
    """

    def __init__(self, config: CTCBiLSTMConfig) -> None:
        super().__init__()
        self.config = config
        self.lstm = nn.LSTM(
            config.num_features,
            config.hidden_dim,
            config.num_layers,
            batch_first=True,
            dropout=config.dropout,
            bidirectional=True,
        )
        self.output = nn.Linear(2 * config.hidden_dim, config.num_phones + 1)

    def forward(self, frames: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Log-probabilities of the blank and of each phone, for every frame.

        Args:
            frames: (B, T, F), in the dtype of the weights.
            lengths: (B,) int, in 1..T; each row gives the same as alone in that length.

        Returns:
            (B, T, num_phones + 1). Class 0 is the blank; past a row's length it is certain (0, the
            others -inf), so that decoding all T frames gives the same phones.

        Raises:
            ValueError, TypeError: another shape or dtype, or lengths out of 1..T.

        Cost: O(T) time, frame after frame within a row.
        """
        check_frames(frames, self.config.num_features, self.output.weight)
        if lengths is None:
            return classified(self.output, self.lstm(frames)[0])
        lengths_within("lengths", lengths, frames.shape[0], frames.shape[1], shortest=1)
        # Packed, the backward direction begins at each row's own last frame.
        packed = pack_padded_sequence(frames, lengths.cpu(), True, enforce_sorted=False)
        hidden = self.lstm(packed)[0]
        packed = hidden._replace(data=classified(self.output, hidden.data))
        padded, _ = pad_packed_sequence(packed, True, total_length=frames.shape[1])
        return blank_past(padded, past_lengths(lengths.to(padded.device), frames.shape[1]))

    def to_dict(self) -> dict[str, Any]:
        """What rebuilds the model without its weights, as JSON values."""
        return {"bilstm": self.config.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CTCBiLSTM:
        """A model with fresh weights of the shape that `to_dict` described.

        Raises:
            ValueError: an unknown or missing key, or a value out of range.
        """
        values = exact_keys("the description of a CTCBiLSTM", values, ["bilstm"])
        return cls(CTCBiLSTMConfig.from_dict(values["bilstm"]))
