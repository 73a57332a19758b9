"""Calls of every kind, and how far a backend's answer is from the oracle's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from linattn_core import LinearAttentionState, linear_attention, reference

from .places import differentiates


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
        shape = (self.batch, self.heads)
        tensors = {
            "query": draw(*shape, self.queries, self.head_dim, dtype=self.dtype),
            "key": draw(*shape, keys, self.head_dim, dtype=self.dtype),
            "value": draw(*shape, keys, self.value_dim, dtype=self.dtype),
        }
        if self.feature_map == "identity":
            # Positive features keep the denominators away from zero, as for the other maps.
            tensors["query"], tensors["key"] = tensors["query"].abs(), tensors["key"].abs()
        if self.initial_state:
            sums = torch.float64 if self.dtype == torch.float64 else torch.float32
            state = (self.sequences, self.heads, self.head_dim)
            tensors["s"] = draw(*state, self.value_dim, dtype=sums)
            tensors["z"] = draw(*state, dtype=sums).abs()
        return {name: x.requires_grad_() for name, x in tensors.items()}

    def options(self) -> dict[str, Any]:
        """Keyword arguments beside the tensors."""

        def vector(numbers: tuple[int, ...] | None) -> Tensor | None:
            return None if numbers is None else torch.tensor(numbers)

        return {
            "is_causal": self.is_causal,
            "feature_map": self.feature_map,
            "key_lengths": vector(self.key_lengths),
            "cu_seqlens": vector(self.cu_seqlens),
        }

    def with_(self, **changes: Any) -> Case:
        return replace(self, **changes)


def evaluate(attend: Any, tensors: dict[str, Tensor], options: dict[str, Any]) -> dict[str, Tensor]:
    """Output, state and the gradients of a fixed random functional of both, by name."""
    state = LinearAttentionState(tensors["s"], tensors["z"]) if "s" in tensors else None
    q, k, v = (tensors[x] for x in ("query", "key", "value"))
    out, final = attend(q, k, v, initial_state=state, return_state=True, **options)
    results = {"out": out, "s": final.s, "z": final.z}
    draw = drawing(1)
    total = sum((x * draw(*x.shape, dtype=x.dtype)).sum() for x in results.values())
    gradients = torch.autograd.grad(total, list(tensors.values()))
    results |= {f"grad_{n}": g for n, g in zip(tensors, gradients, strict=True)}
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
    with torch.no_grad():
        return linear_attention(q, k, v, initial_state=state, backend=backend, **case.options())


def by_definition(case: Case, tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The quadratic reference in `dtype`: in float64 the oracle, else torch's own error."""
    cast = {name: x.detach().to(dtype).requires_grad_() for name, x in tensors.items()}
    return evaluate(reference.quadratic, cast, case.options())
