"""The presets: functions that return everything that a run is, apart from its attention and seed.

smoke    seconds; shows that the pieces fit, learns next to nothing
laptop   minutes on two cores; learns to copy
paper    what the paper trained (section 4.1), on a GPU
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from linattn_models import Lsh, TransformerConfig
from linattn_models.attention import attention_config
from linattn_models.training import TrainingConfig

PresetName = Literal["smoke", "laptop", "paper"]
Attention = Literal["linear", "softmax", "lsh-1", "lsh-4"]


@dataclass(frozen=True)
class Recipe:
    """A model, the sequences that it learns to copy, and how it is trained.

    max_length: positions of a sequence: two separators, a copy, what it is the copy of, padding.
    drop_at: for the schedule "step", the updates after which the rate falls to a tenth.
    held_out: sequences that are looked at, of a stream that is not trained on.
    """

    max_length: int
    num_layers: int
    num_heads: int
    head_dim: int
    ffn_dim: int
    steps: int
    batch_size: int
    learning_rate: float
    norm: Literal["pre", "post"] = "pre"
    optimizer: Literal["radam", "adam", "adamw"] = "adamw"
    schedule: Literal["constant", "cosine", "step"] = "cosine"
    drop_at: int | None = None
    warmup_steps: int = 100
    clip_norm: float | None = 1.0
    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    log_every: int = 25
    eval_every: int | None = None
    checkpoint_every: int | None = None
    held_out: int = 1_000
    lsh_buckets: int = 64
    lsh_chunk: int = 32

    def transformer(self, attention: Attention) -> TransformerConfig:
        """The layers, which differ between two kinds of attention in nothing else."""
        if attention.startswith("lsh") and self.lsh_chunk > self.max_length:
            raise ValueError(
                f"expected --lsh-chunk of at most --max-length, {self.max_length}, got "
                f"{self.lsh_chunk}"
            )
        lsh, layers = (
            Lsh(buckets=self.lsh_buckets, chunk=self.lsh_chunk),
            attention_config(attention),
        )
        if isinstance(layers, Lsh):
            layers = replace(lsh, rounds=layers.rounds)
        return TransformerConfig(
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            ffn_dim=self.ffn_dim,
            attention=layers,
            norm=self.norm,
        )

    def training(self, seed: int) -> TrainingConfig:
        """What the training loop is told; a run of few steps warms up for a tenth of them."""
        return TrainingConfig(
            steps=self.steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            optimizer=self.optimizer,
            schedule=self.schedule,
            drop_at=self.drop_at,
            warmup_steps=min(self.warmup_steps, self.steps // 10),
            clip_norm=self.clip_norm,
            mixed_precision=self.mixed_precision,
            log_every=self.log_every,
            eval_every=self.eval_every,
            checkpoint_every=self.checkpoint_every,
            seed=seed,
        )


def smoke() -> Recipe:
    """Twenty updates on copies of seven symbols at most."""
    return Recipe(
        max_length=16,
        num_layers=2,
        num_heads=2,
        head_dim=8,
        ffn_dim=32,
        steps=20,
        batch_size=16,
        learning_rate=1e-2,
        log_every=5,
        eval_every=10,
        checkpoint_every=10,
        held_out=32,
        lsh_buckets=4,
        lsh_chunk=4,
    )


def laptop() -> Recipe:
    """0.4 million parameters, and three eighths of the paper's positions: 23 symbols at most.

    Positions are what was saved on, because fewer of them are learned in fewer updates, not only in
    cheaper ones (--max-length 128 shows it). Buckets and chunks of lsh are halved, so that there is
    something left for a chunk to overlook.
    """
    return Recipe(
        max_length=48,
        num_layers=3,
        num_heads=8,
        head_dim=16,
        ffn_dim=256,
        steps=2_300,
        batch_size=32,
        learning_rate=5e-3,
        eval_every=500,
        checkpoint_every=500,
        lsh_buckets=32,
        lsh_chunk=16,
    )


def paper() -> Recipe:
    """The paper's own numbers: 4 layers, 8 heads, batch 64, RAdam at 1e-3, 1e-4 after 3,000.

    It names neither the width nor when it stopped: heads of 32 and feed-forward 1,024, as in its
    models of images, and 10,000 updates stand in.
    """
    return Recipe(
        max_length=128,
        num_layers=4,
        num_heads=8,
        head_dim=32,
        ffn_dim=1_024,
        norm="post",
        steps=10_000,
        batch_size=64,
        learning_rate=1e-3,
        optimizer="radam",
        schedule="step",
        drop_at=3_000,
        warmup_steps=0,
        clip_norm=None,
        eval_every=500,
        checkpoint_every=1_000,
    )


PRESETS = {"smoke": smoke, "laptop": laptop, "paper": paper}


def recipe_for(preset: PresetName) -> Recipe:
    """The recipe of `preset`."""
    return PRESETS[preset]()
