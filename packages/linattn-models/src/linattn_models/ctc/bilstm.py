"""The recurrent baseline for speech: a bidirectional LSTM."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from linattn_models.ctc.config import CTCBiLSTMConfig
from linattn_models.ctc.recognizer import Recognizer


class CTCBiLSTM(Recognizer):
    """log p(class | all frames) for every output frame, by bidirectional LSTM layers.

    With one direction it streams: a frame sees none after its own output frame, in any chunk.

    Cost: O(T) time; the frames of a row are computed one after the other.

    Args:
        config: the layers.
    """

    kind = "bilstm"
    config_class = CTCBiLSTMConfig
    config: CTCBiLSTMConfig

    def __init__(self, config: CTCBiLSTMConfig) -> None:
        super().__init__(config)
        self.lstm = nn.LSTM(
            self.num_inputs,
            config.hidden_dim,
            config.num_layers,
            batch_first=True,
            dropout=config.dropout,
            bidirectional=config.bidirectional,
        )
        width = config.hidden_dim * (1 + config.bidirectional)
        self.output = nn.Linear(width, config.num_phones + 1)

    @property
    def streams(self) -> bool:
        """Whether frames may be read as they arrive."""
        return not self.config.bidirectional

    @property
    def how_to_stream(self) -> str:
        """The advice in an error where the recognizer cannot stream."""
        return "build it with bidirectional=False"

    @property
    def dropout(self) -> float:
        """Probability with which outputs are dropped in training mode."""
        return self.config.dropout

    def hidden(
        self,
        frames: Tensor,
        lengths: Tensor | None,
        padding: Tensor | None,
        chunk: int | None = None,
    ) -> Tensor:
        """(B, N, num_inputs) -> (B, N, 2 hidden_dim), or hidden_dim for one direction."""
        if lengths is None or padding is None or not self.config.bidirectional:
            return cast(Tensor, self.lstm(frames)[0])
        if not isinstance(self.lstm, nn.LSTM):  # quantized: it has no backward pass
            packed = pack_padded_sequence(frames, lengths.cpu(), True, enforce_sorted=False)
            return pad_packed_sequence(self.lstm(packed)[0], True, total_length=frames.shape[1])[0]
        # Not packed: the backward pass of packed rows is O(N^2) on a CPU.
        places = torch.arange(frames.shape[1], device=frames.device)
        reverse = torch.where(padding, places, lengths.unsqueeze(1) - 1 - places).unsqueeze(-1)
        x = frames
        for layer in range(self.config.num_layers):
            if layer:
                x = F.dropout(x, self.config.dropout, self.training)
            onward = self._direction(x, f"l{layer}")
            # The backward direction starts at each row's own last frame.
            turned = x.gather(1, reverse.expand_as(x))
            back = self._direction(turned, f"l{layer}_reverse")
            x = torch.cat([onward, back.gather(1, reverse.expand_as(back))], dim=-1)
        return x

    def _direction(self, x: Tensor, place: str) -> Tensor:
        """(B, N, features) -> (B, N, hidden_dim): one direction of one layer of `self.lstm`."""
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        weights = [getattr(self.lstm, f"{kind}_{place}") for kind in kinds]
        start = x.new_zeros(1, x.shape[0], self.config.hidden_dim)
        outputs, _, _ = torch.lstm(
            x,
            (start, start),
            weights,
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=self.training,
            bidirectional=False,
            batch_first=True,
        )
        return outputs
