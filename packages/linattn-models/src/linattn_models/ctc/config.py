"""The shape of a Bi-LSTM, as a value that can be compared, hashed and written to JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from linattn_core.errors import expected, shown
from linattn_models.validation import at_least, from_fields, in_range


@dataclass(frozen=True)
class CTCBiLSTMConfig:
    """Everything that fixes the layers of a `CTCBiLSTM`; the paper's (section 4.3) by default.

    Attributes:
        num_phones: classes besides the blank.
        num_features: F, features of a frame.
        num_layers: layers, each of both directions.
        hidden_dim: of each direction; a layer has twice as many outputs.
        dropout: probability at which outputs between two layers are dropped, in training mode.
    """

    num_phones: int
    num_features: int = 40
    num_layers: int = 3
    hidden_dim: int = 320
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("num_phones", "num_features", "num_layers", "hidden_dim"):
            at_least(name, getattr(self, name), 1)
        in_range("dropout", self.dropout, 0.0, 1.0)
        if self.dropout and self.num_layers == 1:
            wanted = "0 with one layer, since it acts between layers"
            advice = "set it to 0, or num_layers to 2 or more"
            raise ValueError(expected("dropout", wanted, shown(self.dropout), advice))

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values; `from_dict` reads them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CTCBiLSTMConfig:
        """The configuration that `to_dict` wrote.

        Raises:
            ValueError: an unknown or missing key, or a value out of range.
        """
        return from_fields(cls, "the Bi-LSTM configuration", values)
