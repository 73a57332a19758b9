"""Errors of a backend over those of the reference, against float64: python -m benchmarks.errors.

Causal calls with gradients of one head in float32, on standard normal numbers. The oracle is the
reference in float64. 1 means: as exact as the reference in float32, which is plain PyTorch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from linattn_core import linear_attention
from linattn_lab.machine import describe_machine
from linattn_lab.runs import make_folders
from linattn_lab.script import parse_flags, require_at_least, run_script
from linattn_lab.store import Record, new_record
from linattn_lab.tables import markdown_table

RESULTS = Path(__file__).parent.parent / "docs" / "results"
NAMES = ("output", "gradient of query", "gradient of key", "gradient of value")
READING = (
    "Each cell: the root mean square of the error over that of the reference, and the largest "
    "error over the largest of the reference. The budget of the tests is 2 for the largest."
)


@dataclasses.dataclass(frozen=True)
class Flags:
    """What to compare.

    Args:
        lengths: N.
        widths: D = M.
        backend: whose errors.
        out: the folder for operator/errors.md.
    """

    lengths: tuple[int, ...] = (512, 16_384, 2**20)
    widths: tuple[int, ...] = (32, 64)
    backend: str = "cpu"
    out: Path = RESULTS


def main(flags: Flags) -> None:
    """Writes the table of errors."""
    # At a single position the reference is exact: there is nothing to compare with.
    require_at_least(flags, {"lengths": 2, "widths": 1})
    file = flags.out / "operator" / "errors.md"
    make_folders(file.parent)
    sizes = [(length, width) for width in flags.widths for length in flags.lengths]
    rows = [
        [f"{length:,}", str(width), *map(_cell, compare_errors(length, width, flags.backend))]
        for length, width in tqdm(sizes, unit="size", disable=None)
    ]
    record: Record[str] = new_record("python -m benchmarks.errors", describe_machine(), {})
    parts = [
        f"# Errors of the backend {flags.backend} over those of the reference",
        f"By `{record.command}`, {record.date}, commit {record.commit}; "
        f"{record.machine.hardware}; {record.machine.backends}. Causal, float32, one head of "
        "D = M.",
        markdown_table(("N", "D", *NAMES), rows).rstrip(),
        READING,
    ]
    file.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"written: {file}")


def compare_errors(length: int, width: int, backend: str) -> list[tuple[float, float]]:
    """For the output and each gradient: the ratio of the mean errors, and of the largest."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, 1, length, width, generator=generator) for _ in range(4)]
    exact = _results([x.double() for x in tensors], "reference")
    ours, reference = (_results(tensors, name) for name in (backend, "reference"))
    pairs = zip(_errors(ours, exact), _errors(reference, exact), strict=True)
    return [(mean / its_mean, most / its_most) for (mean, most), (its_mean, its_most) in pairs]


def _results(tensors: Sequence[Tensor], backend: str) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors[:3]]
    out = linear_attention(*leaves, is_causal=True, backend=backend)
    return [out.detach(), *torch.autograd.grad(out, leaves, tensors[3])]


def _errors(results: Sequence[Tensor], exact: Sequence[Tensor]) -> list[tuple[float, float]]:
    """The root mean square and the largest of the differences of each tensor."""
    differences = (x.double() - wanted for x, wanted in zip(results, exact, strict=True))
    return [(x.square().mean().sqrt().item(), x.abs().max().item()) for x in differences]


def _cell(ratios: tuple[float, float]) -> str:
    mean, most = ratios
    return f"{mean:.2f}, {most:.2f}"


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
