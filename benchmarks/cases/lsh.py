"""LSH attention as an operator of the cases: its hashing fixed, and how it is checked."""

from __future__ import annotations

import dataclasses
import functools

import torch

import linattn_models
from benchmarks.cases.problem import Problem, inputs
from benchmarks.measure import oracle

LSH_ROUNDS = {"lsh-1": 1, "lsh-4": 4, "lsh-8": 8}
BUCKETS, CHUNK = 64, 32
HEADS = 2  # that are computed again: in float64 they hold twice as much
# Projections of such numbers are sums that float32 holds exactly, so that float64 hashes alike.
GRID = 2**7
STRAY_ROWS = 1e-3


@dataclasses.dataclass(frozen=True)
class Lsh:
    """lsh-X of the paper: X rounds of hashing, keys that are the queries scaled to length 1.

    Args:
        name: "lsh-1", "lsh-4" or "lsh-8".
    """

    name: str
    problem: Problem

    linear = False

    def call(self, query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """The timed call."""
        return self._hashed_by(self._rotations, query, value)

    def _hashed_by(
        self, rotations: torch.Tensor, query: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        return linattn_models.lsh_attention(
            query, value, is_causal=self.problem.causal, chunk=CHUNK, rotations=rotations
        )

    @functools.cached_property
    def _rotations(self) -> torch.Tensor:
        """(rounds, H, D, buckets / 2), the same in every run."""
        problem = self.problem
        generator = torch.Generator(problem.device).manual_seed(0)
        return _on_grid(
            linattn_models.draw_rotations(
                LSH_ROUNDS[self.name], problem.heads, problem.width, BUCKETS,
                generator=generator, device=problem.device,
            )
        )  # fmt: skip

    def tensors(self, problem: Problem, *, backward: bool) -> list[torch.Tensor]:
        """Returns query and value."""
        query, _, value = inputs(problem, length_first=False, backward=False)
        return [tensor.requires_grad_(backward) for tensor in (_on_grid(query), value)]

    def fault(self, tensors: list[torch.Tensor]) -> str | None:
        """Compares outputs and gradients of some heads with the same call in float64.

        That the call is LSH attention is for linattn-models' own tests to show; here it must be
        right at the very length that is timed.
        """
        backward = tensors[0].requires_grad
        batch, heads = tensors[0].shape[:2]
        chosen = oracle.sampled_heads(batch, heads, most=HEADS)

        def pick(tensor: torch.Tensor) -> torch.Tensor:
            return tensor[chosen][None]  # (1, P, N, D)

        actual = oracle.output_and_gradients(lambda *x: pick(self.call(*x)), tensors, backward)
        exact = [pick(tensor.detach()).double().requires_grad_(backward) for tensor in tensors]
        again = functools.partial(self._hashed_by, self._rotations[:, chosen[1]])
        expected = oracle.output_and_gradients(again, exact, backward)
        ours = (actual[0], *(pick(gradient) for gradient in actual[1:]))
        names = ("the output", "the query gradient", "the value gradient")
        return oracle.stray_rows(ours, expected, names[: len(ours)], STRAY_ROWS)


def _on_grid(numbers: torch.Tensor) -> torch.Tensor:
    return (numbers * GRID).round() / GRID
