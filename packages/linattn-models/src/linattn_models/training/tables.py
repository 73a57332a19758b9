"""Tables that read as well on a terminal as in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table, its columns padded; the first is set to the left, the others to the right."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(_line(cells, widths) for cells in (header, rule, *rows)) + "\n"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cells[0].ljust(widths[0])]
    padded += [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return f"| {' | '.join(padded)} |"


def figure(value: float | None, estimated: bool = False) -> str:
    """A number to three digits, after a ~ if it is estimated; a dash if there is none."""
    if value is None:
        return "-"
    digits = f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:#.3g}".rstrip(".")
    return f"~{digits}" if estimated else digits
