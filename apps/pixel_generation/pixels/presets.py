"""The presets: functions that return everything that a run is, apart from its images.

smoke    seconds; shows that the parts work together, learns almost nothing
laptop   minutes on two cores; learns to draw
paper    what the paper trained (section 4.2); for a GPU and days
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import tyro

from linattn_models import Categorical, MixtureOfLogistics, TransformerConfig
from linattn_models.training import TrainingFlags, adamw_flags
from pixels.datasets import DatasetName, Images
from pixels.tokens import Layout

Attention = Literal["linear", "softmax", "lsh-1", "lsh-4"]

# Training images of each dataset as it is published, without those held out for validation.
TRAINING_IMAGES = {"digits": 1_397, "mnist": 55_000, "fashion-mnist": 55_000, "cifar10": 45_000}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A model and how it is trained."""

    preset: str
    dataset: DatasetName
    """digits comes with scikit-learn; folder are your own pictures in --data-dir; the others are
    read from there or downloaded."""
    num_layers: int
    num_heads: int
    head_dim: int
    ffn_dim: int
    training: Annotated[TrainingFlags, tyro.conf.arg(name="")]
    attention: Attention = "linear"
    """linear: the paper's; softmax: the usual kind; lsh-1, lsh-4: Reformer's, in 1 or 4 rounds."""
    head: Literal["categorical", "logistics"] = "logistics"
    """How a token is predicted: by a probability for each level, or by a mixture of discretized
    logistics, which knows that levels have an order."""
    num_mixtures: int = 10
    """Logistics in the mixture."""
    layout: Layout = "sub-pixels"
    """Colors as three tokens per pixel, or as one."""
    norm_first: bool = True
    dropout: float = 0.0
    validation_images: int | None = None
    """How many of the validation images are evaluated; None: all."""
    test_images: int | None = None
    """How many of the test images are evaluated; None: all."""

    def transformer(self) -> TransformerConfig:
        """The layers, which differ between two kinds of attention in nothing else."""
        return TransformerConfig(
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            ffn_dim=self.ffn_dim,
            norm_first=self.norm_first,
            dropout=self.dropout,
        ).with_attention(self.attention)

    def output_head(self, images: Images) -> Categorical | MixtureOfLogistics:
        """The head for one token of `images`."""
        together = self.layout == "pixels" and images.channels == 3
        if self.head == "logistics":
            return MixtureOfLogistics(self.num_mixtures, 3 if together else 1, images.levels)
        if together:
            raise ValueError(
                "expected the head 'logistics' with the layout 'pixels', got 'categorical', which "
                "predicts one number per token; choose the layout 'sub-pixels'"
            )
        return Categorical(images.levels)


def smoke(dataset: DatasetName) -> Recipe:
    """Twenty updates of a model too small to learn."""
    digits = dataset == "digits"
    return Recipe(
        preset="smoke",
        dataset=dataset,
        num_layers=2,
        num_heads=2,
        head_dim=8,
        ffn_dim=32,
        head="categorical" if digits else "logistics",
        validation_images=8,
        test_images=8,
        training=adamw_flags(
            steps=20,
            batch_size=16 if digits else 2,
            learning_rate=1e-2,
            log_every=5,
            eval_every=10,
            checkpoint_every=10,
        ),
    )


def laptop(dataset: DatasetName) -> Recipe:
    """A model that two cores train in minutes."""
    return _laptop_digits() if dataset == "digits" else _laptop_larger(dataset)


def _laptop_digits() -> Recipe:
    """0.2 million parameters on 1,397 images of 64 pixels.

    A model soon overfits so few images, hence the dropout and the weight decay. The rate starts
    high, which helps against that too, and falls to 0 along a cosine. The images are not augmented
    by shifts: these scans are all centered, and a model should learn that. Seventeen levels are few
    enough to learn the probability of each.
    """
    return Recipe(
        preset="laptop",
        dataset="digits",
        num_layers=4,
        num_heads=2,
        head_dim=32,
        ffn_dim=256,
        head="categorical",
        dropout=0.25,
        training=adamw_flags(
            steps=1_500,
            batch_size=32,
            learning_rate=5e-3,
            weight_decay=0.3,
            log_every=20,
            eval_every=200,
            checkpoint_every=500,
        ),
    )


def _laptop_larger(dataset: DatasetName) -> Recipe:
    """The paper's kind of model, seven times smaller, trained on as many images as minutes allow.

    Gray digits and clothes are nearly all black or white. A probability for each level learns that
    at once; a mixture of logistics, which has to sharpen at both ends, takes far longer: after 250
    updates on MNIST 1.65 bits per dimension against 1.35. Colors keep the logistics.
    """
    color = dataset == "cifar10"
    return Recipe(
        preset="laptop",
        dataset=dataset,
        num_layers=4,
        num_heads=4,
        head_dim=32,
        ffn_dim=512,
        head="logistics" if color else "categorical",
        validation_images=64 if color else 256,
        test_images=128 if color else 512,
        training=adamw_flags(
            steps=500 if color else 1_000,
            batch_size=4 if color else 8,
            learning_rate=1e-3 if color else 2e-3,
            eval_every=250,
            checkpoint_every=250,
        ),
    )


def demo() -> Recipe:
    """The laptop's digits with fewer updates, which overfit less and need less dropout."""
    recipe = _laptop_digits()
    training = replace(recipe.training, steps=1_000, log_every=50, eval_every=100)
    return replace(recipe, preset="demo", dropout=0.2, training=training)


def paper(dataset: DatasetName) -> Recipe:
    """The paper's own numbers; for data that it does not have, those of MNIST.

    MNIST: 8 layers, 8 heads of 32, feed-forward 1,024, 10 logistics, RAdam at 1e-4, batch 10 and
    250 epochs. CIFAR-10: 16 layers over 3,072 sub-pixels, batch 4. There the paper fixes the time
    (a week of one GPU) and not the number of updates: 100 epochs take its place here.
    """
    color = dataset == "cifar10"
    batch_size, epochs = (4, 100) if color else (10, 250)
    an_epoch = TRAINING_IMAGES.get(dataset, TRAINING_IMAGES["mnist"]) // batch_size
    return Recipe(
        preset="paper",
        dataset=dataset,
        num_layers=16 if color else 8,
        num_heads=8,
        head_dim=32,
        ffn_dim=1_024,
        norm_first=False,
        training=TrainingFlags(
            steps=epochs * an_epoch,
            batch_size=batch_size,
            learning_rate=1e-4,
            optimizer="radam",
            schedule="constant",
            warmup_steps=0,
            log_every=100,
            eval_every=an_epoch,
            checkpoint_every=an_epoch,
        ),
    )


PRESETS = {"smoke": smoke, "laptop": laptop, "paper": paper}
