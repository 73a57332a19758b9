"""The presets: functions that return everything that decides a run, apart from its attention.

smoke    seconds; shows that the parts work together, learns next to nothing
laptop   minutes on two cores; learns words and indentation
large    a GPU and hours
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from linattn_models import Linear, Softmax, TransformerConfig
from linattn_models.training import TrainingFlags, adamw_flags

PresetName = Literal["smoke", "laptop", "large"]
Attention = Literal[
    "linear", "fixed-decay", "learned-decay", "hedgehog-decay", "gated", "window", "gated-window",
    "softmax",
]  # fmt: skip
RECOMMENDED: Attention = "gated-window"
"""What `TransformerConfig.language` takes."""


@dataclass(frozen=True)
class Recipe:
    """The model, and the pieces of text that it learns from."""

    training: Annotated[TrainingFlags, tyro.conf.arg(name="")]
    length: int
    """Tokens of a piece of text in training."""
    num_layers: int
    num_heads: int
    head_dim: int
    window_size: int = 64
    """Keys that --attention window and gated-window read by softmax."""
    held_out: int = 256
    """Pieces of what is held out that are evaluated, of --length tokens."""

    def transformer(self, attention: Attention) -> TransformerConfig:
        """The layers of today's language models with an attention, all else alike."""
        kinds = {
            "linear": Linear(),
            "fixed-decay": Linear(decay="fixed"),
            "learned-decay": Linear(decay="learned"),
            "hedgehog-decay": Linear("hedgehog", decay="learned"),
            "gated": Linear(decay="gated"),
            "window": Linear(window_size=self.window_size),
            "gated-window": Linear(decay="gated", window_size=self.window_size),
            "softmax": Softmax(),
        }
        return TransformerConfig.language(
            self.num_layers, self.num_heads, self.head_dim, attention=kinds[attention]
        )


def smoke() -> Recipe:
    """Twenty updates of a tiny model."""
    return Recipe(
        adamw_flags(
            steps=20,
            batch_size=8,
            learning_rate=1e-2,
            log_every=5,
            eval_every=10,
            checkpoint_every=10,
        ),
        length=32,
        num_layers=1,
        num_heads=2,
        head_dim=8,
        window_size=8,
        held_out=16,
    )


def laptop() -> Recipe:
    """0.4 million parameters, 2.5 million bytes seen."""
    return Recipe(
        adamw_flags(
            steps=600,
            batch_size=16,
            learning_rate=4e-3,
            weight_decay=0.1,
            log_every=20,
            eval_every=100,
            checkpoint_every=200,
        ),
        length=256,
        num_layers=3,
        num_heads=3,
        head_dim=32,
    )


def large() -> Recipe:
    """25 million parameters, 1.6 billion bytes seen."""
    return Recipe(
        adamw_flags(
            steps=25_000,
            batch_size=64,
            learning_rate=1e-3,
            weight_decay=0.1,
            mixed_precision="bf16",
            log_every=20,
            eval_every=500,
            checkpoint_every=500,
        ),
        length=1_024,
        num_layers=8,
        num_heads=8,
        head_dim=64,
        held_out=1_024,
    )


PRESETS: dict[PresetName, Callable[[], Recipe]] = {"smoke": smoke, "laptop": laptop, "large": large}
