"""The results of a script: its numbers as JSON, and its tables as Markdown."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from linattn_core.errors import expected
from linattn_lab.machine import describe_machine
from linattn_lab.runs import make_folders
from linattn_lab.script import require_at_least
from linattn_lab.tables import name_environments
from linattn_models.basics.files import replace_file
from linattn_models.training import environment, write_json


def prepare(flags: Any, least: Mapping[str, int], name: str) -> Path:
    """Checks the flags, sets the threads and the seed, and makes the folder for the results.

    Args:
        flags: with `threads` and `out`.
        least: the minimum of other flags, by name.
        name: of the folder under runs/conversion, where `out` is None.
    """
    require_at_least(flags, {"threads": 1, **least})
    if flags.threads is not None:
        torch.set_num_threads(flags.threads)
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    out: Path = flags.out or Path("runs", "conversion", name)
    make_folders(out)
    return out


def require_finite(loss: Tensor, step: int) -> None:
    """Stops a training at the first loss that is NaN or infinite, before the weights change."""
    if not loss.isfinite():
        advice = "other data, a smaller model or another seed may train"
        raise ValueError(
            expected(f"the loss at step {step}", "a finite number", loss.item(), advice)
        )


def write_results(
    out: Path, flags: Any, start: float, numbers: Mapping[str, Any], tables: Sequence[str]
) -> None:
    """Writes results.json and table.md, and prints the latter.

    Args:
        out: an existing folder.
        flags: the dataclass of the command line.
        start: `time.perf_counter()` at the start of the script.
        numbers: what was measured.
        tables: Markdown.
    """
    minutes = (time.perf_counter() - start) / 60
    where = environment(torch.device("cpu")) | {"transformers": transformers.__version__}
    settings = {k: _plain(v) for k, v in dataclasses.asdict(flags).items() if k != "out"}
    record = {
        "hardware": describe_machine().hardware,
        "settings": settings,
        "environment": where,
        "minutes": minutes,
        **numbers,
    }
    text = "\n\n".join([*(table.strip() for table in tables), note(record)]) + "\n"
    write_json(out / "results.json", record)
    replace_file(out / "table.md", text.encode())
    print(f"\n{text}\nAlso in {out}.")


def note(record: Mapping[str, Any]) -> str:
    """When, where and with which versions a run was made."""
    where = record["environment"]
    return (
        f"{record['minutes']:.1f} minutes in all, {name_environments([where])}; "
        f"transformers {where['transformers']}; {record['hardware']}."
    )


def _plain(value: Any) -> Any:
    """A flag's value as JSON has it; of a path its name alone."""
    return value.name if isinstance(value, Path) else value
