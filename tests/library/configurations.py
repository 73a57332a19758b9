"""Random models, prompts and settings, each by its number: every build draws the same tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linattn_core.decoder_spec import WEIGHTS
from linattn_models import (
    AutoregressiveTransformer,
    Categorical,
    Linear,
    MixtureOfLogistics,
    Transformer,
    TransformerConfig,
    export_decoder,
    load_decoder,
)
from linattn_models.attention.rotary import Llama3Scaling

SCALING = Llama3Scaling(8.0, 0.01, 4.0, 16)
LONGEST = 40  # tokens, for positions that are learned


@dataclass(frozen=True)
class Case:
    """A model, and what is drawn from it.

    Attributes:
        number: of the case.
        prefix: (B, N) or (B, N, 3) tokens; (B, N, E) for a model of vectors.
        count: tokens that are drawn for each row.
        settings: arguments of `generate`, as numbers.
        stops: tokens that end a row.
    """

    number: int
    model: Any
    weights: str
    prefix: Tensor
    count: int
    settings: dict[str, float]
    stops: tuple[int, ...]

    @property
    def prompt(self) -> list[int]:
        """The tokens of all rows, one behind the other."""
        values: list[int] = self.prefix.flatten().tolist()
        return values

    @property
    def without_history(self) -> Case:
        """The same where a draw depends on the parameters alone."""
        settings = {x: y for x, y in self.settings.items() if x != "repetition_penalty"}
        return replace(self, settings=settings, stops=())

    @property
    def portable(self) -> Case:
        """The same without bfloat16 for 9 inputs or more, which some processors round, too."""
        inputs = self.prefix.shape[0] * (self.prefix.shape[1] + 1)
        rounds = self.weights == "bfloat16" and inputs > 8
        return replace(self, weights="float32") if rounds else self

    def export(self, folder: Path) -> Path:
        file = folder / f"{self.number}.linattn"
        export_decoder(self.model, file, self.weights)
        return file

    def draw(self, file: Path, **options: Any) -> list[list[int]]:
        """The new tokens of each row in Python; those of channels one behind the other."""
        options = {"prefix": self.prefix, **options}
        whole = load_decoder(file).generate(
            **options, max_new_tokens=self.count, stop_tokens=self.stops or None,
            **self.python_settings,
        )  # fmt: skip
        drawn = whole[:, options["prefix"].shape[1] :].flatten(1).tolist()
        return [[x for x in row if x >= 0] for row in drawn]

    @property
    def python_settings(self) -> dict[str, Any]:
        """With the names and the "off" of Python."""
        off = {"top_k": 0, "top_p": 0.0, "min_p": 0.0}
        settings = {x: y for x, y in self.settings.items() if off.get(x) != y}
        return {("seeds" if name == "seed" else name): y for name, y in settings.items()}


def random_case(number: int) -> Case:
    """The case of a number; every eighth has a model of vectors."""
    choose = random.Random(number)
    torch.manual_seed(number)
    config = _config(choose)
    rows, length, count = choose.randint(1, 5), choose.randint(1, 12), choose.randint(1, 12)
    weights = choose.choice(WEIGHTS)
    if number % 8 == 7:
        prefix = torch.randn(rows, length, config.embed_dim)
        return Case(number, _perturbed(Transformer(config)), weights, prefix, count, {}, ())
    model = _perturbed(_model(choose, config))
    channels, levels = model.head.channels, model.head.levels
    prefix = torch.randint(levels, (rows, length, channels)[: 2 + (channels > 1)])
    settings: dict[str, float] = {
        "seed": choose.choice([0, 1, -5, choose.randrange(2**53)]),
        "temperature": choose.choice([0.0, 0.3, 1.0, 1.0, 1.9]),
    }
    stops: tuple[int, ...] = ()
    if isinstance(model.head, Categorical):
        settings["top_k"] = choose.choice([0, 0, 1, 3, 40])
        settings["top_p"] = choose.choice([0.0, 0.0, 0.4, 0.95])
        settings["min_p"] = choose.choice([0.0, 0.0, 0.05, 0.3])
        settings["repetition_penalty"] = choose.choice([1.0, 1.0, 1.4, 0.8])
        stops = tuple(choose.sample(range(levels), choose.choice([0, 0, 1, 2])))
    return Case(number, model, weights, prefix, count, settings, stops)


def _config(choose: random.Random) -> TransformerConfig:
    pick = choose.choice
    kv_heads, head_dim = choose.randint(1, 3), pick([1, 2, 3, 4, 5, 8, 16, 20])
    heads = kv_heads * pick([1, 1, 2, 3])
    options: dict[str, Any] = {}
    feature_map = pick(["elu", "elu", "relu", "identity", "hedgehog"])
    if feature_map == "hedgehog" and pick([False, True]):
        options = {"num_features": pick([2, 6, 16]), "num_heads": heads, "num_kv_heads": kv_heads}
    attention = Linear(
        feature_map,
        decay=pick([None, "fixed", "learned", "gated"]),
        window_size=pick([0, 0, 1, 3, 8]),
        feature_map_options=options,
    )
    bias = pick([False, True])
    config = TransformerConfig(
        num_layers=pick([1, 2, 3]), num_heads=heads, head_dim=head_dim,
        ffn_dim=pick([1, 7, 24, 65]), attention=attention, num_kv_heads=kv_heads,
        ffn=pick(["gelu", "gelu_tanh", "relu", "swiglu"]), norm=pick(["layer", "rms"]),
        norm_first=pick([False, True]), bias=bias, qkv_bias=pick([None, not bias]),
        rotary=head_dim % 2 == 0 and pick([False, True]),
    )  # fmt: skip
    is_scaled = config.rotary and kv_heads > 1
    return replace(config, rotary_scaling=SCALING) if is_scaled else config


def _model(choose: random.Random, config: TransformerConfig) -> AutoregressiveTransformer:
    pick = choose.choice
    positions = None if config.rotary else pick(["learned", "sinusoidal", "none"])
    if pick([False, False, True]):
        head = MixtureOfLogistics(pick([1, 2, 5]), pick([1, 3]), pick([2, 16, 256]))
        return AutoregressiveTransformer(config, head, LONGEST, positions)
    config = replace(config, tie_embeddings=pick([False, True]))
    levels = pick([2, 5, 19, 70])
    return AutoregressiveTransformer(config, levels, LONGEST, positions, start=pick([False, True]))


def _perturbed(model: Any) -> Any:
    """With random numbers in all weights, so that no two logits are close."""
    with torch.no_grad():
        for x in model.parameters():
            x.add_(torch.randn_like(x) * 0.3)
    return model.eval()
