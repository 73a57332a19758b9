"""Markdown tables, and the numbers in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tabulate import tabulate

# An underscore inside a word, as in x86_64, is no markup.
MARKUP = re.compile(r"[\\`*\[\]<>|&$]|(?<![^\W_])_|_(?![^\W_])")
Record = TypeVar("Record")


def literal(text: str) -> str:
    """Text of a record or a file for Markdown: on one line, with all markup escaped."""
    return MARKUP.sub(r"\\\g<0>", _one_line(text))


def code(text: str) -> str:
    """Text as code in Markdown, such as a command, on one line."""
    return f"`{_one_line(text).replace('`', chr(39))}`"


def _one_line(text: str) -> str:
    return " ".join("".join(x if x.isprintable() else " " for x in text).split())


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with padded columns, the first aligned left, the others right.

    Cells are shown as they are: markup in them is escaped.
    """
    header, *rows = [[literal(cell) for cell in row] for row in (header, *rows)]
    aligned = ["left", *["right"] * (len(header) - 1)]
    return f"{tabulate(rows, header, 'pipe', colalign=aligned, disable_numparse=True)}\n"


def table_of(
    records: Mapping[str, Record], columns: Mapping[str, Callable[[Record], str]], first: str
) -> str:
    """A Markdown table with a row for each record.

    Args:
        records: by the name in the first column.
        columns: the cell of a record, by the column's title.
        first: the title of the first column.
    """
    rows = [
        [name, *(cell(record) for cell in columns.values())] for name, record in records.items()
    ]
    return markdown_table([first, *columns], rows)


def describe_environment(where: Mapping[str, Any]) -> str:
    """The torch, the device and the threads of a run's "environment", as a part of a sentence."""
    return literal(f"torch {where['torch']}, {where['device']}, threads: {where['threads']}")


def name_environments(environments: Iterable[Mapping[str, Any]]) -> str:
    """Every day, commit and machine in records of runs, as the end of a sentence."""
    records = list(environments)
    days = dict.fromkeys(literal(each.get("date") or "an unknown day") for each in records)
    commits = dict.fromkeys(literal((each["commit"] or "unknown")[:7]) for each in records)
    machines = dict.fromkeys(map(describe_environment, records))
    return f"on {', '.join(days)} at commit {', '.join(commits)}; {'; '.join(machines)}"


def figure(value: float | None) -> str:
    """A number with three digits; "-" for None."""
    if value is None:
        return "-"
    large = abs(_round(value)) >= 1_000
    return f"{value:,.0f}" if large else f"{value:#.3g}".rstrip(".")


def training_cost(summary: Mapping[str, Any]) -> str:
    """The sizes and the time of a training, from its `summary.json`."""
    sizes = f"{summary['parameters']:,} parameters, {summary['steps']:,} steps"
    return f"{sizes}, {summary['train_seconds']:.0f} s of training"


def decimals(value: float | None, places: int) -> str:
    """A number with so many decimals; "-" for None, which stands for what is not finite."""
    return "-" if value is None else f"{value:.{places}f}"


def seconds(value: float | None) -> str:
    """A time with its unit, three digits: "1.50 s", "250 ms", "31.0 us"; "-" for None."""
    return _write_scaled(value, ((1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")))


def memory(count: float | None) -> str:
    """Bytes with a unit, three digits: "1.50 GB", "250 MB", "640 B"; "-" for None."""
    return _write_scaled(count, ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")))


def _write_scaled(value: float | None, units: Sequence[tuple[float, str]]) -> str:
    if value is None:
        return "-"
    size, unit = next((each for each in units if abs(_round(value)) >= each[0]), units[-1])
    return f"{figure(value / size)} {unit}"


def _round(value: float) -> float:
    """To the three digits that are shown."""
    return float(f"{value:.3g}")
