"""The presets: functions that return everything that a run is, apart from its data and seed.

smoke    seconds; shows that the pieces fit, learns next to nothing
laptop   minutes on two cores; learns to draw
paper    what the paper trained (section 4.2); for a GPU and days
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pixel_datasets import Images
from pixel_tokens import Layout

from linattn_models import Categorical, MixtureOfLogistics, TransformerConfig
from linattn_models.training import TrainingConfig

PresetName = Literal["smoke", "laptop", "paper"]
Attention = Literal["linear", "softmax", "lsh-1", "lsh-4"]
HeadName = Literal["categorical", "logistics"]


@dataclass(frozen=True)
class Recipe:
    """A model and how it is trained.

    head: how a token is predicted, by a probability for each level ("categorical") or by a mixture
    of `num_mixtures` discretized logistics ("logistics"), which knows that levels have an order.
    validation_images, test_images: how many of the held-out images are looked at; None is all.
    """

    num_layers: int
    num_heads: int
    head_dim: int
    ffn_dim: int
    steps: int
    batch_size: int
    learning_rate: float
    head: HeadName = "logistics"
    num_mixtures: int = 10
    layout: Layout = "sub-pixels"
    norm: Literal["pre", "post"] = "pre"
    dropout: float = 0.0
    optimizer: Literal["radam", "adam", "adamw"] = "adamw"
    schedule: Literal["constant", "cosine"] = "cosine"
    warmup_steps: int = 100
    weight_decay: float = 0.0
    clip_norm: float | None = 1.0
    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    log_every: int = 10
    eval_every: int | None = None
    checkpoint_every: int | None = None
    validation_images: int | None = None
    test_images: int | None = None

    def transformer(self, attention: Attention) -> TransformerConfig:
        """The layers, which differ between two kinds of attention in nothing else."""
        return TransformerConfig(
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            ffn_dim=self.ffn_dim,
            norm=self.norm,
            dropout=self.dropout,
        ).with_attention(attention)

    def output_head(self, images: Images) -> Categorical | MixtureOfLogistics:
        """The head for one token of `images`."""
        together = self.layout == "pixels" and images.channels == 3
        if self.head == "logistics":
            return MixtureOfLogistics(self.num_mixtures, 3 if together else 1, images.levels)
        if together:
            raise ValueError(
                "expected the head 'logistics' with the layout 'pixels', since a categorical head"
                " predicts one number a token, got 'categorical': choose the layout 'sub-pixels'"
            )
        return Categorical(images.levels)

    def training(self, seed: int) -> TrainingConfig:
        """What the training loop is told; a run of few steps warms up for a tenth of them."""
        return TrainingConfig(
            steps=self.steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            optimizer=self.optimizer,
            schedule=self.schedule,
            warmup_steps=min(self.warmup_steps, self.steps // 10),
            weight_decay=self.weight_decay,
            clip_norm=self.clip_norm,
            mixed_precision=self.mixed_precision,
            log_every=self.log_every,
            eval_every=self.eval_every,
            checkpoint_every=self.checkpoint_every,
            seed=seed,
        )


def smoke(images: Images) -> Recipe:
    """Twenty updates of a model too small to be any good."""
    return Recipe(
        num_layers=2,
        num_heads=2,
        head_dim=8,
        ffn_dim=32,
        head="categorical" if images.name == "digits" else "logistics",
        steps=20,
        batch_size=16 if images.name == "digits" else 2,
        learning_rate=1e-2,
        log_every=5,
        eval_every=10,
        checkpoint_every=10,
        validation_images=8,
        test_images=8,
    )


def laptop(images: Images) -> Recipe:
    """What two cores learn in minutes."""
    return _laptop_digits() if images.name == "digits" else _laptop_larger(images)


def _laptop_digits() -> Recipe:
    """0.2 million parameters on 1,397 images of 64 pixels.

    So few images are soon known by heart, hence the dropout and the weight decay. The rate starts
    high, which helps against that too, and falls to nothing along a cosine. The training images are
    not shifted about, which helps where digits are told apart: these scans are all centred, and a
    model should know that. Seventeen levels are few enough to learn each one's probability.
    """
    return Recipe(
        num_layers=4,
        num_heads=2,
        head_dim=32,
        ffn_dim=256,
        head="categorical",
        dropout=0.25,
        steps=1_500,
        batch_size=32,
        learning_rate=5e-3,
        weight_decay=0.3,
        log_every=20,
        eval_every=200,
        checkpoint_every=500,
    )


def _laptop_larger(images: Images) -> Recipe:
    """The paper's kind of model, seven times smaller, shown as many images as minutes allow.

    Gray digits and clothes are nearly all black or white. A probability for each level learns that
    at once, where the logistics, which have to sharpen at both ends, take far longer: after 250
    updates on MNIST some 1.35 bits per dimension against 1.65. Colors keep the logistics.
    """
    color = images.channels == 3
    return Recipe(
        num_layers=4,
        num_heads=4,
        head_dim=32,
        ffn_dim=512,
        head="logistics" if color else "categorical",
        steps=500 if color else 1_000,
        batch_size=4 if color else 8,
        learning_rate=1e-3 if color else 2e-3,
        eval_every=250,
        checkpoint_every=250,
        validation_images=64 if color else 256,
        test_images=128 if color else 512,
    )


def demo(images: Images) -> Recipe:
    """The laptop's recipe in fewer updates, which need less against learning by heart."""
    return replace(laptop(images), steps=1_000, dropout=0.2, eval_every=100)


def paper(images: Images) -> Recipe:
    """The paper's own numbers; for digits, which it does not have, those of MNIST.

    MNIST: 8 layers, 8 heads of 32, feed-forward 1,024, 10 logistics, RAdam at 1e-4, batch 10 and
    250 epochs. CIFAR-10: 16 layers over 3,072 sub-pixels, batch 4. There the paper fixes the time
    (a week of one GPU) and not the number of updates: 100 epochs stand in for it here.
    """
    color = images.channels == 3
    batch_size, epochs = (4, 100) if color else (10, 250)
    an_epoch = max(1, len(images.train) // batch_size)
    return Recipe(
        num_layers=16 if color else 8,
        num_heads=8,
        head_dim=32,
        ffn_dim=1_024,
        norm="post",
        steps=epochs * an_epoch,
        batch_size=batch_size,
        learning_rate=1e-4,
        optimizer="radam",
        schedule="constant",
        warmup_steps=0,
        clip_norm=None,
        log_every=100,
        eval_every=an_epoch,
        checkpoint_every=an_epoch,
    )


PRESETS = {"smoke": smoke, "laptop": laptop, "paper": paper}


def recipe_for(preset: PresetName, images: Images) -> Recipe:
    """The recipe of `preset` for this dataset."""
    return PRESETS[preset](images)
