"""The presets: functions that return everything that decides a run, apart from its attention.

smoke    seconds; shows that the parts work together, learns next to nothing
laptop   minutes on two cores; learns to copy
paper    what the paper trained (section 4.1), on a GPU
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import tyro

from linattn_core.errors import expected
from linattn_lab.script import require_at_least
from linattn_models import Lsh, TransformerConfig
from linattn_models.attention import attention_config
from linattn_models.training import TrainingFlags, adamw_flags

PresetName = Literal["smoke", "laptop", "paper"]
Attention = Literal["linear", "softmax", "lsh-1", "lsh-4"]


@dataclass(frozen=True)
class Recipe:
    """The model, and the sequences that it learns to copy."""

    training: Annotated[TrainingFlags, tyro.conf.arg(name="")]
    max_length: int
    """Positions of a sequence, padding included; the longest copy is half of them, less one."""
    num_layers: int
    num_heads: int
    head_dim: int
    ffn_dim: int
    norm_first: bool = True
    lsh_buckets: int = 64
    """Of each round of hashing; an even number."""
    lsh_chunk: int = 32
    """Positions of a chunk, in the order of their buckets."""
    held_out: int = 1_000
    """Sequences of the evaluation, from a stream of their own."""

    def transformer(self, attention: Attention) -> TransformerConfig:
        """The layers, the same for every attention."""
        layers = attention_config(attention)
        require_at_least(self, {"lsh_buckets": 1, "lsh_chunk": 1})  # for every attention
        if self.lsh_buckets > 1 and self.lsh_buckets % 2:
            raise ValueError(expected("--lsh-buckets", "1 or an even number", self.lsh_buckets))
        if isinstance(layers, Lsh):
            if self.lsh_chunk > self.max_length:
                wanted = f"at most --max-length, {self.max_length}"
                raise ValueError(expected("--lsh-chunk", wanted, self.lsh_chunk))
            layers = replace(layers, buckets=self.lsh_buckets, chunk=self.lsh_chunk)
        return TransformerConfig(
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            ffn_dim=self.ffn_dim,
            attention=layers,
            norm_first=self.norm_first,
        )


def smoke() -> Recipe:
    """Twenty updates on copies of at most seven symbols."""
    return Recipe(
        adamw_flags(
            steps=20,
            batch_size=16,
            learning_rate=1e-2,
            log_every=5,
            eval_every=10,
            checkpoint_every=10,
        ),
        max_length=16,
        num_layers=2,
        num_heads=2,
        head_dim=8,
        ffn_dim=32,
        lsh_buckets=4,
        lsh_chunk=4,
        held_out=32,
    )


def laptop() -> Recipe:
    """0.4 million parameters, and three eighths of the paper's positions: at most 23 symbols.

    Fewer positions are learned in fewer updates, not only in cheaper ones (--max-length 128 shows
    it). Buckets and chunks of lsh are halved, so that a chunk still does not cover the sequence.
    """
    return Recipe(
        adamw_flags(
            steps=2_300,
            batch_size=32,
            learning_rate=5e-3,
            log_every=25,
            eval_every=500,
            checkpoint_every=500,
        ),
        max_length=48,
        num_layers=3,
        num_heads=8,
        head_dim=16,
        ffn_dim=256,
        lsh_buckets=32,
        lsh_chunk=16,
    )


def paper() -> Recipe:
    """The paper's own numbers: 4 layers, 8 heads, batch 64, RAdam at 1e-3, 1e-4 after 3,000.

    It gives neither the width nor the number of updates: heads of 32 and feed-forward 1,024, as in
    its models of images, and 10,000 updates are ours.
    """
    training = TrainingFlags(
        steps=10_000,
        batch_size=64,
        learning_rate=1e-3,
        optimizer="radam",
        schedule="step",
        drop_at=3_000,
        log_every=25,
        eval_every=500,
        checkpoint_every=1_000,
    )
    return Recipe(
        training,
        max_length=128,
        num_layers=4,
        num_heads=8,
        head_dim=32,
        ffn_dim=1_024,
        norm_first=False,
    )


PRESETS: dict[PresetName, Callable[[], Recipe]] = {"smoke": smoke, "laptop": laptop, "paper": paper}
