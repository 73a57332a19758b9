"""The shape of a Bi-LSTM, as a value that can be compared, hashed and written to JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from linattn_models.validation import at_least, exact_keys, in_range


@dataclass(frozen=True)
class CTCBiLSTMConfig:
    """Everything that fixes the layers of a `CTCBiLSTM`; the paper's (section 4.3) by default.

    Attributes:
        num_phones: what is told apart, besides the blank.
        num_features: F, numbers in a frame.
        num_layers: layers, each reading the frames in both directions.
        hidden_dim: of each direction; a layer puts out twice as many numbers.
        dropout: probability at which numbers between two layers are dropped, in training mode.
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
            raise ValueError(
                "dropout acts between layers and must be 0 where there is one, and is "
                f"{self.dropout!r}; set it to 0, or num_layers to 2 or more."
            )

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values; `from_dict` takes them back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CTCBiLSTMConfig:
        """The configuration that `to_dict` wrote.

        Raises:
            ValueError: a key that is unknown or missing, or a value out of range.
        """
        required = [field.name for field in fields(cls) if field.default is MISSING]
        optional = [field.name for field in fields(cls) if field.default is not MISSING]
        return cls(**exact_keys("A Bi-LSTM's configuration", values, required, optional))
