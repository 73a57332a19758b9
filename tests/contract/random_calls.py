"""Random calls as source code: what is printed of a failing call is what ran.

Arguments, layouts in memory, dtypes and extremes of size are drawn from one seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linattn_core import FeatureMap, get_feature_map

# Lengths around the tiles of every backend, and some that fit none.
LENGTHS = (0, 1, 2, 3, 5, 9, 15, 16, 17, 31, 33, 50, 63, 64, 65, 100, 127, 128, 129, 200)
DIMS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 32, 33, 64, 65)
DTYPES = ("float32", "float32", "float64", "bfloat16", "float16")
SCALES = (1.0, 1.0, 1.0, 0.0, 1e-6, 1e-3, 30.0, 1e4)
# Maps that kernels apply, more often than those that run before them.
INSIDE = ("elu", "elu", "elu", "relu", "relu", "identity")
BEFORE = ("taylor", "polynomial", "favor", "rff", "hedgehog")
# A tensor in memory, and its view with the layout (b, h, n, d).
LAYOUTS = (
    ("{b}, {h}, {n}, {d}", ""),
    ("{b}, {h}, {n}, {d}", ""),
    ("{b}, {n}, {h}, {d}", ".transpose(1, 2)"),
    ("{b}, {h}, {d}, {n}", ".mT"),
    ("{b}, {h}, {n}, 2 * {d}", "[..., ::2]"),
    ("{b}, {h}, {n} + 3, {d} + 1", "[:, :, 2:-1, 1:]"),
    ("{b}, 1, {n}, {d}", ".expand(-1, {h}, -1, -1)"),
    ("1, {h}, {n}, {d}", ".expand({b}, -1, -1, -1)"),
)


def numbers(seed: int, *shape: int) -> Tensor:
    """Standard normal numbers, the same on every device."""
    generator = torch.Generator("cpu").manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")
    return x.to(torch.get_default_device())


def places(seed: int, share: float, *shape: int) -> Tensor:
    """True in about this share of the places."""
    return torch.special.ndtr(numbers(seed, *shape)) < share


def mapping(name: str, head_dim: int) -> FeatureMap:
    """A map that is not applied inside kernels; a random one is the same in every call."""
    random_map = name in ("favor", "rff")
    seeded = {"generator": torch.Generator("cpu").manual_seed(0)} if random_map else {}
    return get_feature_map(name, head_dim, **seeded).to(torch.get_default_device())


def value_of(source: str) -> Any:
    """The value of a source."""
    names = {"torch": torch, "numbers": numbers, "places": places, "mapping": mapping}
    return eval(source, names)


@dataclass(frozen=True)
class Call:
    """A random call.

    Attributes:
        kind: "gradients", "output", "step" or "slots" (a step in place on slots of a pool).
        tensors: sources of query, key, value and, where there are, s, z and log_decay.
        options: sources of the other arguments.
        poison: what stands in the keys that do not exist.
    """

    kind: str
    tensors: dict[str, str]
    options: dict[str, str]
    poison: float = 0.0

    @property
    def arguments(self) -> list[str]:
        """What is counted: the arguments that are used, the kind and the dtype."""
        dtype = self.tensors["value"].partition("torch.")[2].partition(")")[0]
        state = ["initial_state"] if "s" in self.tensors and self.kind[0] in "go" else []
        decay = ["log_decay"] if "log_decay" in self.tensors else []
        maps = [self.options.get("feature_map", "'elu'").strip("'").partition("(")[0]]
        used = [x for x in self.options if x != "feature_map"]
        return [self.kind, dtype, *used, *state, *decay, *maps]

    def program(self, backend: str) -> str:
        """Code that repeats the call; to be run in the root of the repository."""

        def table(sources: dict[str, str]) -> str:
            return "".join(f"        {name!r}: {x!r},\n" for name, x in sources.items())

        return (
            "from tests.contract.judging import complaints\n"
            "from tests.contract.random_calls import Call\n\n"
            f"call = Call(\n    {self.kind!r},\n"
            f"    {{\n{table(self.tensors)}    }},\n"
            f"    {{\n{table(self.options)}    }},\n"
            f"    float('{self.poison}'),\n)\n"
            f"print(complaints(call, {backend!r}) or 'within budget')\n"
        )


class Drawing:
    """One random call, argument by argument."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.kind = self._of("gradients", "gradients", "gradients", "output", "step", "slots")
        self.dtype = self._of(*DTYPES)
        self.sums = "float64" if self.dtype == "float64" else "float32"
        self.inside = self._often(0.85)
        self.map = self._of(*(INSIDE if self.inside else BEFORE))
        self.causal = self.stepping or self._often(0.6)
        self.packed = not self.stepping and self._often(0.15)
        self.batch = 1 if self.packed else self._of(1, 1, 2, 3, 5)
        self.groups, self.kv_heads = self._of(1, 1, 1, 2, 3), self._of(1, 2, 3)
        self.length = 1 if self.stepping else self._of(*LENGTHS)
        inner = sorted(self._of(*range(self.length + 1)) for _ in range(self._of(0, 1, 3)))
        self.bounds = [0, *inner, self.length]
        self.queries = self.length
        if not (self.causal or self.packed) and self._often(0.5):
            self.queries = self._of(*LENGTHS)
        # Without eps, what is too small for a dtype leaves 0 / 0.
        self.without_eps = self.map == "elu" and self._often(0.1)
        self.scales = SCALES[:3] if self.without_eps else SCALES
        self.dim = self._of(*(DIMS if self.inside else DIMS[:8]))
        self.value_dim = self._of(*DIMS)

    @property
    def stepping(self) -> bool:
        return self.kind in ("step", "slots")

    def call(self) -> Call:
        """The call of the seed."""
        options = self._options()
        poison = self._of(0.0, float("nan"), float("inf"))
        return Call(self.kind, self._tensors(), options, poison)

    def _of(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def _often(self, share: float) -> bool:
        return self.random.random() < share

    def _seed(self) -> int:
        return self.random.randrange(10**6)

    def _laid(self, b: int, h: int, n: int, d: int, change: str) -> str:
        shape, view = self._of(*LAYOUTS)
        sizes = {"b": b, "h": h, "n": n, "d": d}
        drawn = f"numbers({self._seed()}, {shape.format(**sizes)})"
        return f"{drawn}{change}{view.format(**sizes)}"

    def _tensors(self) -> dict[str, str]:
        """Sources by the names that the contract's cases have for tensors."""
        heads, feature_dim = self.groups * self.kv_heads, self.dim
        if not self.inside:
            feature_dim = mapping(self.map, self.dim).feature_dim(self.dim)
        tensors = {
            "query": self._laid(self.batch, heads, self.queries, self.dim, self._features()),
            "key": self._laid(self.batch, self.kv_heads, self.length, self.dim, self._features()),
        }
        scale = f".mul({self._of(*self._value_scales())}).to(torch.{self.dtype})"
        tensors["value"] = self._laid(self.batch, self.kv_heads, self.length, self.value_dim, scale)
        if self.stepping or self._often(0.4):
            sequences = len(self.bounds) - 1 if self.packed else self.batch
            shape = (sequences, self.kv_heads, feature_dim)
            tensors["s"] = self._laid(*shape, self.value_dim, f".to(torch.{self.sums})")
            tensors["z"] = self._laid(*shape, 1, f".abs().to(torch.{self.sums})") + "[..., 0]"
        if self.causal and self._often(0.35):
            tensors["log_decay"] = self._decay()
        return tensors

    def _value_scales(self) -> tuple[float, ...]:
        """Scales at which float16 keeps its digits, in gradients of maps too."""
        if self.dtype != "float16":
            return SCALES
        return (1.0, 1.0, 0.0, 0.1, 30.0, *((1e4,) if self.inside else ()))

    def _features(self) -> str:
        """How numbers become queries and keys: as large as the map allows, no denominator 0."""
        if not self.inside:
            return f".abs().mul({self._of(1.0, 0.3, 0.01)}).to(torch.{self.dtype})"
        positive = ".abs()" if self.map == "identity" else ""
        return f"{positive}.mul({self._of(*self.scales)}).to(torch.{self.dtype})"

    def _decay(self) -> str:
        shape = (self.kv_heads,)
        if self._often(0.6):
            shape = (self.batch, self.kv_heads, self.length)
        text = ", ".join(map(str, shape))
        source = f"numbers({self._seed()}, {text}).abs().mul({self._of(0.0, -1e-3, -1.0, -1e3)})"
        if self._often(0.3):
            source += f".masked_fill(places({self._seed()}, 0.1, {text}), -torch.inf)"
        return f"{source}.to(torch.{self._of(self.sums, self.sums, self.dtype)})"

    def _options(self) -> dict[str, str]:
        options = {} if self.map == "elu" else {"feature_map": repr(self.map)}
        if not self.inside:
            options["feature_map"] = f"mapping({self.map!r}, {self.dim})"
        if self.groups > 1 or self._often(0.1):
            options["enable_gqa"] = "True"
        if self.without_eps or self._often(0.1):
            options["eps"] = "0.0" if self.without_eps else self._of("1e-3", "1.0")
        if self._often(0.15) and self.map != "favor":
            options["normalize"] = "False"
        if self.stepping:
            return options
        options["is_causal"] = repr(self.causal)
        if self._often(0.15) and self.map != "favor":
            options["return_normalizer"] = "True"
        return options | self._masks()

    def _masks(self) -> dict[str, str]:
        masks, length = {}, self.length
        kind = self._of("int32", "int64")
        if self.packed:
            masks["cu_seqlens"] = f"torch.tensor({self.bounds}"
        elif self._often(0.25):
            lengths = [self._of(0, length, self._of(*range(length + 1))) for _ in range(self.batch)]
            masks["key_lengths"] = f"torch.tensor({lengths}"
        masks = {name: f"{x}, dtype=torch.{kind})" for name, x in masks.items()}
        if self._often(0.3):
            masks["attn_mask"] = self._mask()
        return masks

    def _mask(self) -> str:
        """True takes part: anywhere, on one side, the same in all rows, or nowhere."""
        batch, length = self.batch, self.length
        shape = self._of(f"{batch}, {length}", f"{batch}, {length}", f"1, {length}")
        mask = f"places({self._seed()}, {self._of(0.0, 0.5, 0.9, 1.0)}, {shape})"
        if self._often(0.4):
            side, cut = self._of("<", ">="), self._of(*range(length + 1))
            mask = f"(torch.arange({length}) {side} {cut}).expand({batch}, -1)"
        return f"{mask}[:, None, None]" if self._often(0.3) else mask
