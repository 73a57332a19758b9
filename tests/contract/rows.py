"""Rows of different lengths, in three forms that must give the same: alone, packed, padded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linattn_core import LinearAttentionState, linear_attention

from .terms import Results, terms


@dataclass
class Rows:
    """Rows of different lengths: output, state and gradients of a call of them, in three forms.

    Attributes:
        lengths: of the rows.
        tensors: query, key and value (B, H, N, D), N at least the longest row.
        weights: of the outputs in the loss, the shape of value.
        options: of the call.
    """

    lengths: list[int]
    tensors: list[Tensor]
    weights: Tensor
    options: dict[str, Any]

    def alone(self) -> list[Tensor]:
        """Each row by a call of its own."""
        parts = [
            self._call(*(x[i : i + 1, :, :n] for x in self.tensors))
            for i, n in enumerate(self.lengths)
        ]
        out = torch.cat([x for x, _ in parts], 2)
        state = LinearAttentionState.cat([x for _, x in parts])
        return self._results(out[0], state, out * self._joined(self.weights))

    def sizes(self) -> list[Tensor]:
        """The sum of absolute terms of every number of the results.

        The loss is curved in the state: an error of s is one of the derivative of sin(s), which is
        at most 1. So the upstream gradient of the state is as large as the terms of the state.
        """
        exists = torch.arange(self.weights.shape[2]) < torch.tensor(self.lengths)[:, None]
        weights = self.weights.double() * exists[:, None, :, None]

        def arriving(sums: Results) -> Results:
            return {"out": weights, **{name: 1 + sums[name].detach() for name in ("s", "z")}}

        options = {name: x for name, x in self.options.items() if name != "backend"}
        tensors = dict(zip(("query", "key", "value"), self.tensors, strict=True))
        lengths = {"key_lengths": torch.tensor(self.lengths)}
        sums = terms(tensors, options | lengths, arriving).sums
        out = self._joined(sums["out"])[0]
        return [out, *(sums[x] for x in ("s", "z", "grad_query", "grad_key", "grad_value"))]

    def packed(self) -> list[Tensor]:
        """The rows end to end."""
        ends = torch.tensor([0, *self.lengths]).cumsum(0)
        out, state = self._call(*map(self._joined, self.tensors), cu_seqlens=ends)
        return self._results(out[0], state, out * self._joined(self.weights))

    def padded(
        self, slots: list[Tensor], length: int, key_lengths: Tensor | None = None
    ) -> list[Tensor]:
        """Row i at the positions slots[i], with NaN in the keys and values of the padding.

        A mask tells which these are, or key_lengths.
        """
        slots = [slot.to(self.weights.device) for slot in slots]
        mask = torch.zeros(len(slots), length, dtype=torch.bool)
        for row, slot in zip(mask, slots, strict=True):
            row[slot] = True
        query, *others = self.tensors
        key, value = (placed(x, slots, length, float("nan")) for x in others)
        told = {"attn_mask": mask} if key_lengths is None else {"key_lengths": key_lengths}
        out, state = self._call(placed(query, slots, length), key, value, **told)
        present = torch.cat([out[i][:, slot] for i, slot in enumerate(slots)], 1)
        return self._results(present, state, out * placed(self.weights, slots, length))

    def _call(self, *tensors: Tensor, **lengths: Tensor) -> tuple[Tensor, LinearAttentionState]:
        return linear_attention(*tensors, **lengths, return_state=True, **self.options)

    def _joined(self, x: Tensor) -> Tensor:
        return torch.cat([row[:, :n] for row, n in zip(x, self.lengths, strict=True)], 1)[None]

    def _results(self, out: Tensor, state: LinearAttentionState, weighted: Tensor) -> list[Tensor]:
        loss = weighted.sum() + state.s.sin().sum() + state.z.cos().sum()
        return [out, *state, *torch.autograd.grad(loss, self.tensors, materialize_grads=True)]


def placed(x: Tensor, slots: list[Tensor], length: int, filler: float = 0.0) -> Tensor:
    """Row i of (B, H, N, D) at the positions slots[i] of a longer tensor."""
    rows = []
    for row, slot in zip(x, slots, strict=True):
        empty = torch.full((row.shape[0], length, row.shape[2]), filler, dtype=x.dtype)
        rows.append(empty.index_copy(1, slot, row[:, : len(slot)]))
    return torch.stack(rows)
