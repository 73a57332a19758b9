"""The equalities of sections 3.2 to 3.4, checked in float64: python -m replication.equations.

Each form of linear attention, by every live backend that accepts float64 and by the reference's own
forms, is compared with the quadratic definition on random inputs. What is written is the largest
difference of any output or gradient, of all and of each: "causal", "causal/cpu".
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from linattn_core import backends, explain, get_feature_map, linear_attention
from linattn_core.reference import chunked, quadratic, recurrent
from linattn_lab.runs import make_folders
from linattn_lab.script import parse_flags, run_script

Attend = Callable[..., Tensor]
"""(query, key, value, is_causal=...) -> out."""
BATCH, HEADS, LENGTH, DIM, WIDTH = 2, 4, 200, 32, 24


@dataclasses.dataclass(frozen=True)
class Flags:
    """Compare the forms of linear attention."""

    out: Path
    """Folder for figures.json."""
    seed: int = 0
    """Of the inputs."""


def main(flags: Flags) -> None:
    """Computes the differences, and writes them."""
    make_folders(flags.out)
    torch.manual_seed(flags.seed)
    query, key = torch.randn(2, BATCH, HEADS, LENGTH, DIM, dtype=torch.float64)
    value = torch.randn(BATCH, HEADS, LENGTH, WIDTH, dtype=torch.float64)
    inputs = (query, key, value)
    figures = {
        "positive": least_similarity(query, key),
        "polynomial": polynomial_gap(query, key),
        "associativity/chunked": form_gap(chunked, *inputs, is_causal=False),
        "causal/chunked": form_gap(chunked, *inputs, is_causal=True),
        "rnn/recurrent": form_gap(recurrent, *inputs, is_causal=True),
        "constant-state": state_bytes(784) / state_bytes(1),
    }
    for name, device in live():
        there = tuple(x.to(device) for x in inputs)
        attend = partial(linear_attention, backend=name)
        figures |= {
            f"associativity/{name}": form_gap(attend, *there, is_causal=False),
            f"causal/{name}": form_gap(attend, *there, is_causal=True),
            f"gradients/{name}": gradient_gap(attend, *there),
            f"rnn/{name}": form_gap(partial(step_by_step, name), *there, is_causal=True),
        }
    for form in ("associativity", "causal", "gradients", "rnn"):
        figures[form] = max(v for name, v in figures.items() if name.startswith(f"{form}/"))
    (flags.out / "figures.json").write_text(json.dumps(figures, indent=1))


def live() -> list[tuple[str, str]]:
    """The backends that run these equations here, forward and backward, and a device of each."""
    accepted: dict[str, str] = {}
    for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
        inputs = torch.zeros(3, 1, 1, 2, DIM, dtype=torch.float64, device=device)
        answers = explain(*inputs.requires_grad_(), is_causal=True)
        accepted |= {x: device for x, y in answers.items() if x in backends() and y == "accepts"}
    return list(accepted.items())


def least_similarity(query: Tensor, key: Tensor) -> float:
    """The least phi(q) . phi(k), with this code's phi(x) = elu(x) + 1 (equation 7)."""
    phi_query, phi_key = get_feature_map("elu", DIM)(query, key)
    return float((phi_query @ phi_key.mT).min())


def polynomial_gap(query: Tensor, key: Tensor) -> float:
    """The largest difference of phi(q) . phi(k) from (q . k)^2, phi of degree 2 (section 3.2.1)."""
    phi_query, phi_key = get_feature_map("polynomial", DIM)(query, key)
    return difference(phi_query @ phi_key.mT, (query @ key.mT).square())


def form_gap(attend: Attend, *inputs: Tensor, is_causal: bool) -> float:
    """The largest difference from the quadratic definition."""
    return difference(attend(*inputs, is_causal=is_causal), quadratic(*inputs, is_causal=is_causal))


def difference(ours: Tensor, definition: Tensor) -> float:
    """The largest of any element."""
    return float((ours - definition).abs().max())


def gradient_gap(attend: Attend, *inputs: Tensor) -> float:
    """Equations 13 to 15 beside what autograd makes of the definition."""
    upstream = torch.randn_like(inputs[2])

    def gradients(attend: Attend) -> tuple[Tensor, ...]:
        leaves = [x.clone().requires_grad_() for x in inputs]
        return torch.autograd.grad(attend(*leaves, is_causal=True), leaves, upstream)

    return max(map(difference, gradients(attend), gradients(quadratic)))


def step_by_step(
    backend: str, query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool
) -> Tensor:
    """Calls of one position each, which hand the state on (equations 16 to 20)."""
    state, outputs = None, []
    for i in range(query.shape[2]):
        at = slice(i, i + 1)
        out, state = linear_attention(
            query[:, :, at], key[:, :, at], value[:, :, at],
            is_causal=is_causal, initial_state=state, return_state=True, backend=backend,
        )  # fmt: skip
        outputs.append(out)
    return torch.cat(outputs, 2)


def state_bytes(length: int) -> int:
    """Bytes of the state after so many positions."""
    inputs = torch.randn(3, 1, 1, length, DIM)
    _, state = linear_attention(*inputs, is_causal=True, return_state=True)
    return int(state.s.nbytes + state.z.nbytes)


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
