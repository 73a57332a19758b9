"""The presets: functions that return all settings of a run.

smoke      seconds; shows that the parts work together, learns nothing
laptop     AN4 in about 40 minutes of one core
paper      what the paper trained (section 4.3) on WSJ; for a GPU
streaming  laptop's layers, causal, for speech as it arrives
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import tyro

from linattn_models import Linear, TransformerConfig
from linattn_models.attention import Softmax
from linattn_models.training import TrainingFlags, adamw_flags
from speech.corpora import BadInput, CorpusName
from speech.features import STEP_SECONDS, Normalization

Attention = Literal["linear", "softmax", "lsh-1", "lsh-4", "lstm"]
ATTENTIONS: tuple[Attention, ...] = ("linear", "softmax", "lsh-4", "lstm")  # of table 3
SPEEDS = (1.0, 0.9, 1.1)  # to train at, the speech as it is first
# Updates in 40 minutes of one core with AVX2, by the seconds of an update; lsh-1's are estimated.
LAPTOP_STEPS = {"linear": 6_000, "softmax": 5_300, "lsh-1": 4_000, "lsh-4": 2_300, "lstm": 5_300}
KERNEL = 11  # frames that the convolution before a block sees
DECAY_SECONDS = 0.32  # of --decay-range
STREAMING_STEPS = 4_000
PAST_FRAMES = 16  # of softmax in a stream: in a layer 2 x 16 x 192 numbers, linear has 33 x 192
STREAMING_LSTM_DIM = 416  # 4.0 million parameters, as many as a transformer has


# What of a recipe decides what is recognized, and names it.
DATA_FIELDS = (
    *("preset", "corpus", "attention", "normalize", "max_frames"),
    *("subsampling", "utterances", "units"),
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recognizer and how it is trained."""

    preset: str
    training: Annotated[TrainingFlags, tyro.conf.arg(name="")]
    corpus: CorpusName = "synthetic"
    """synthetic is made on this machine, manifest read from --manifest, others from --data-dir."""
    units: str | None = None
    """What is recognized: phones, characters, or bpe:N, N pieces of words. If not given, phones;
    of a manifest without --lexicon, characters."""
    attention: Attention = "linear"
    """linear: the paper's; softmax: the usual kind; lsh-X: Reformer's, X rounds of hashing; lstm:
    layers of LSTM in both directions instead."""
    num_layers: int = 9
    num_heads: int = 6
    head_dim: int = 32
    ffn_dim: int = 768
    dropout: float = 0.1
    subsampling: Literal[1, 4] = 4
    """Frames of audio for each frame of the model; 4 puts two convolutions in front."""
    depthwise_kernel: int = KERNEL
    """Frames that a convolution before each block of a transformer sees; 0: none, as the paper."""
    lstm_layers: int = 3
    lstm_dim: int = 320
    """Units of each direction."""
    batch_frames: int = 16_000
    """The most frames of a batch, padding included; --batch-size bounds its utterances."""
    max_frames: int = 2_400
    """The most frames of an utterance; longer ones are bad input."""
    normalize: Normalization = "speaker"
    """What has mean 0 and variance 1 together: all of a speaker, an utterance, what was heard so
    far of it (running), or nothing."""
    speed_perturbation: bool = True
    """Train at 0.9, 1 and 1.1 times the speed."""
    spec_augment: bool = True
    """Train with random bands of time and frequency masked."""
    chunk: int = 0
    """Output frames that see each other and those before them, for a model that streams; 0: all
    see all. The trained model runs with any other number, too."""
    train_chunks: tuple[int, ...] = ()
    """Chunks of which each update draws one."""
    decay_range: tuple[float, float] = (0.7, 0.95)
    """With --chunk: how much of its sums a head may keep every 0.32 s, at least and at most."""
    augment: bool = False
    """Train at random levels, with noise and silence around, and on some noise without speech."""
    bad_input: BadInput = "refuse"
    """Whether utterances that cannot be used end the run, or are left out and counted."""
    utterances: int = 2_000
    """Training utterances of the synthetic corpus."""

    def transformer(self) -> TransformerConfig:
        """The blocks of a transformer, which differ between attentions in nothing else."""
        config = TransformerConfig(
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            ffn_dim=self.ffn_dim,
            dropout=self.dropout,
            is_causal=self.chunk > 0,
            causal_block=max(self.chunk, 1),
        )
        if self.chunk and self.attention == "linear":
            frames = DECAY_SECONDS / (STEP_SECONDS * self.subsampling)
            low, high = (factor ** (1 / frames) for factor in self.decay_range)
            return config.with_attention(Linear(decay="learned", decay_range=(low, high)))
        if self.chunk and self.attention == "softmax":
            return config.with_attention(Softmax(past_size=PAST_FRAMES))
        return config.with_attention(self.attention)

    @property
    def positions(self) -> str:
        """Those of a transformer; a stream has none."""
        return "none" if self.chunk else "sinusoidal"


def smoke(attention: Attention) -> Recipe:
    """Ten updates of a model too small to learn."""
    return Recipe(
        preset="smoke",
        attention=attention,
        num_layers=2,
        num_heads=2,
        head_dim=16,
        ffn_dim=64,
        lstm_layers=2,
        lstm_dim=16,
        speed_perturbation=False,
        utterances=64,
        training=adamw_flags(
            steps=10,
            batch_size=8,
            learning_rate=1e-3,
            schedule="constant",
            warmup_steps=5,
            log_every=5,
            eval_every=5,
            checkpoint_every=5,
        ),
    )


def laptop(attention: Attention) -> Recipe:
    """The paper's layers on frames four times as long, for AN4: 4 million parameters."""
    training = adamw_flags(
        steps=LAPTOP_STEPS[attention],
        batch_size=8,
        learning_rate=1.5e-3,
        betas=(0.9, 0.98),
        weight_decay=0.01,
        log_every=20,
        eval_every=200,
        checkpoint_every=200,
        keep_checkpoints=5,
    )
    if attention == "lstm":
        training = replace(
            training, learning_rate=1e-3, optimizer="adam", betas=(0.9, 0.999), weight_decay=0.0
        )
    return Recipe(preset="laptop", attention=attention, training=training)


def paper(attention: Attention) -> Recipe:
    """The paper's own numbers: RAdam at 1e-4 for transformers, Adam at 1e-3 for the Bi-LSTM.

    The rate is halved when the validation error stops falling. The paper gives neither batch nor
    updates nor how often it evaluates; they are ours.
    """
    lstm = attention == "lstm"
    return Recipe(
        preset="paper",
        corpus="kaldi",
        attention=attention,
        subsampling=1,
        depthwise_kernel=0,
        speed_perturbation=False,
        spec_augment=False,
        batch_frames=32_000,
        training=TrainingFlags(
            steps=100_000,
            batch_size=32,
            learning_rate=1e-3 if lstm else 1e-4,
            optimizer="adam" if lstm else "radam",
            schedule="plateau",
            drop_factor=0.5,
            patience=1,
            log_every=100,
            eval_every=2_000,
            checkpoint_every=2_000,
        ),
    )


def streaming(attention: Attention) -> Recipe:
    """The laptop's layers, causal: chunks of 160, 320 or 640 ms, running normalization.

    Beside linear attention for comparison: softmax with the keys and values of 16 frames before a
    chunk, whose state has the same size, and an LSTM of one direction with as many parameters.
    """
    recipe = laptop(attention)
    return replace(
        recipe,
        preset="streaming",
        normalize="running",
        chunk=8,
        train_chunks=(4, 8, 16),
        augment=True,
        lstm_dim=STREAMING_LSTM_DIM,
        training=replace(recipe.training, steps=STREAMING_STEPS),
    )


PresetName = Literal["smoke", "laptop", "paper", "streaming"]
PRESETS: dict[PresetName, Callable[[Attention], Recipe]] = {
    "smoke": smoke,
    "laptop": laptop,
    "paper": paper,
    "streaming": streaming,
}
