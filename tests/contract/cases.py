"""Calls of every kind, and how far a backend's answer is from the oracle's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, Protocol

import torch
from torch import Tensor

from linattn_core import (
    FeatureMap,
    LinearAttentionState,
    get_feature_map,
    linear_attention,
    reference,
)

from .places import differentiates


def phi(name: str, head_dim: int) -> str | FeatureMap:
    """The map as calls take it: a learned one as a module, the others by name."""
    if name != "hedgehog":
        return name
    return get_feature_map(name, head_dim).to(torch.get_default_device())


class Draw(Protocol):
    def __call__(self, *shape: int, dtype: torch.dtype) -> Tensor: ...


def drawing(seed: int) -> Draw:
    """Draws standard normal tensors, the same on every device."""
    generator = torch.Generator("cpu").manual_seed(seed)

    def draw(*shape: int, dtype: torch.dtype) -> Tensor:
        x = torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")
        return x.to(torch.get_default_device(), dtype)

    return draw


@dataclass(frozen=True)
class Case:
    """One call of `linear_attention`, with inputs drawn from `seed`."""

    batch: int = 2
    heads: int = 3
    queries: int = 37
    keys: int | None = None  # as many as queries
    head_dim: int = 8
    value_dim: int = 5
    is_causal: bool = True
    feature_map: str = "elu"
    key_lengths: tuple[int, ...] | None = None
    cu_seqlens: tuple[int, ...] | None = None
    initial_state: bool = False
    kv_heads: int | None = None  # as many as heads
    mask: str | None = None  # "left", "right", "gaps" or "none left"
    log_decay: str | None = None  # "heads", "positions", "strong" or "resets"
    normalize: bool = True
    return_normalizer: bool = False
    dtype: torch.dtype = torch.float32
    seed: int = 0

    def __str__(self) -> str:
        """A readable test id: what differs from the plain case."""
        plain = Case()
        shown = [
            f"{name}={value}".replace("torch.", "")
            for name, value in vars(self).items()
            if value != getattr(plain, name)
        ]
        return ",".join(shown) or "plain"

    @property
    def sequences(self) -> int:
        return self.batch if self.cu_seqlens is None else len(self.cu_seqlens) - 1

    def inputs(self) -> dict[str, Tensor]:
        """Leaf tensors by name: query, key, value and, if wanted, s and z."""
        draw = drawing(self.seed)

        keys = self.queries if self.keys is None else self.keys
        heads = self.heads if self.kv_heads is None else self.kv_heads
        shape = (self.batch, heads)
        tensors = {
            "query": draw(self.batch, self.heads, self.queries, self.head_dim, dtype=self.dtype),
            "key": draw(*shape, keys, self.head_dim, dtype=self.dtype),
            "value": draw(*shape, keys, self.value_dim, dtype=self.dtype),
        }
        if self.feature_map == "identity":
            # Positive features keep the denominators away from zero, as for the other maps.
            tensors["query"], tensors["key"] = tensors["query"].abs(), tensors["key"].abs()
        if self.initial_state:
            sums = torch.float64 if self.dtype == torch.float64 else torch.float32
            state = (self.sequences, heads, self.head_dim)
            tensors["s"] = draw(*state, self.value_dim, dtype=sums)
            tensors["z"] = draw(*state, dtype=sums).abs()
        if self.log_decay is not None:
            tensors["log_decay"] = self._decay(draw, (*shape, keys))
        return {name: x.requires_grad_() for name, x in tensors.items()}

    def options(self) -> dict[str, Any]:
        """Keyword arguments beside the tensors."""

        def vector(numbers: tuple[int, ...] | None) -> Tensor | None:
            return None if numbers is None else torch.tensor(numbers)

        extended = {
            "attn_mask": None if self.mask is None else self._mask(),
            "enable_gqa": self.kv_heads is not None,
            "normalize": self.normalize,
            "return_normalizer": self.return_normalizer,
        }
        plain = Case()
        names = {"attn_mask": "mask", "enable_gqa": "kv_heads"}
        asked = [
            x for x in extended if getattr(self, names.get(x, x)) != getattr(plain, names.get(x, x))
        ]
        return {
            "is_causal": self.is_causal,
            "feature_map": self.feature_map,
            "key_lengths": vector(self.key_lengths),
            "cu_seqlens": vector(self.cu_seqlens),
            **{name: extended[name] for name in asked},
        }

    def _decay(self, draw: Draw, shape: tuple[int, ...]) -> Tensor:
        """Logarithms of the decay: mild ones, or ones that forget all but a few positions."""
        sums = torch.float64 if self.dtype == torch.float64 else torch.float32
        decay = -draw(*(shape[1:2] if self.log_decay == "heads" else shape), dtype=sums).abs()
        if self.log_decay == "strong":
            decay = 1000 * decay
        if self.log_decay == "resets":
            decay[..., ::5] = -torch.inf
        return decay

    def _mask(self) -> Tensor:
        """(B, L) bool: in every row other keys are left."""
        length = self.queries if self.keys is None else self.keys
        positions, rows = torch.arange(length), torch.arange(self.batch)[:, None]
        if self.mask == "none left":
            return (rows > 0).expand(self.batch, length)
        if self.mask == "gaps":
            return (positions * (rows + 2) // 3) % 2 == 0
        present = positions < length // 2 + rows
        return present.flip(1) if self.mask == "left" else present

    def with_(self, **changes: Any) -> Case:
        return replace(self, **changes)


def in_two_dtypes(cases: Sequence[Case], others: Sequence[torch.dtype]) -> list[Case]:
    """Each case in float32, and in one other dtype, which take turns."""
    return [
        case.with_(dtype=dtype)
        for case, other in zip(cases, cycle(others), strict=False)
        for dtype in (torch.float32, other)
    ]


def upstream(results: dict[str, Tensor]) -> dict[str, Tensor]:
    """Random upstream gradients of the results, by name, the same in every dtype.

    They are multiples of 1/32 below 8, which all dtypes hold: a backend and the oracle get the same
    numbers. Rounded ones would differ from the oracle's before anything is computed.
    """
    draw = drawing(1)
    drawn = {name: draw(*x.shape, dtype=torch.float64) for name, x in results.items()}
    return {name: (x * 32).round().div(32).to(results[name].dtype) for name, x in drawn.items()}


def evaluate(attend: Any, tensors: dict[str, Tensor], options: dict[str, Any]) -> dict[str, Tensor]:
    """Output, state and the gradients of a fixed random functional of both, by name.

    A tensor that requires no gradient gets none.
    """
    state = LinearAttentionState(tensors["s"], tensors["z"]) if "s" in tensors else None
    q, k, v = (tensors[x] for x in ("query", "key", "value"))
    if "log_decay" in tensors:
        options = {**options, "log_decay": tensors["log_decay"]}
    out, *normalizer, final = attend(q, k, v, initial_state=state, return_state=True, **options)
    results = {"out": out, "s": final.s, "z": final.z}
    if normalizer:
        results["normalizer"] = normalizer[0]
    weights = upstream(results)
    total = sum((x * weights[name]).sum() for name, x in results.items())
    leaves = {name: x for name, x in tensors.items() if x.requires_grad}
    gradients = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
    results |= {f"grad_{n}": g for n, g in zip(leaves, gradients, strict=True)}
    return {name: x.detach() for name, x in results.items()}


def on_backend(case: Case, backend: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """All that a call gives; the output alone of a backend that computes no gradients."""
    if not differentiates(backend):
        return {"out": output(case, backend, tensors)}
    return evaluate(linear_attention, tensors, {**case.options(), "backend": backend})


def output(case: Case, backend: str, tensors: dict[str, Tensor]) -> Tensor:
    """The output of a call that asks for nothing else."""
    state = LinearAttentionState(tensors["s"], tensors["z"]) if "s" in tensors else None
    q, k, v = (tensors[x] for x in ("query", "key", "value"))
    options = case.options()
    if "log_decay" in tensors:
        options["log_decay"] = tensors["log_decay"]
    with torch.no_grad():
        return linear_attention(q, k, v, initial_state=state, backend=backend, **options)


def by_definition(case: Case, tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The quadratic reference in `dtype`: in float64 the oracle, else torch's own error."""
    cast = {name: x.detach().to(dtype).requires_grad_() for name, x in tensors.items()}
    return evaluate(reference.quadratic, cast, case.options())
