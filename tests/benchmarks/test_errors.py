"""The table of errors: each backend's over the reference's."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.errors import NAMES, Flags, compare_errors, main
from linattn_core import backends


def test_the_reference_has_its_own_errors() -> None:
    assert compare_errors(100, 8, "reference") == [(1.0, 1.0)] * len(NAMES)


@pytest.mark.parametrize("backend", sorted({"cpu", "reference"} & set(backends())))
def test_the_table_has_a_row_for_each_size(backend: str, tmp_path: Path) -> None:
    main(Flags(lengths=(64, 300), widths=(16,), backend=backend, out=tmp_path))

    lines = (tmp_path / "operator" / "errors.md").read_text(encoding="utf-8").splitlines()
    table = [line.strip("|").split("|") for line in lines if line.startswith("|")][2:]
    rows = [[cell.strip() for cell in row] for row in table]
    assert [row[:2] for row in rows] == [["64", "16"], ["300", "16"]]
    ratios = [float(part) for row in rows for cell in row[2:] for part in cell.split(", ")]
    assert len(ratios) == 16
    assert all(0 < ratio < 4 for ratio in ratios)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (Flags(lengths=(64, 1)), "lengths"),
        (Flags(lengths=()), "lengths"),
        (Flags(widths=(0,)), "widths"),
    ],
)
def test_sizes_without_an_error_are_refused(flags: Flags, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        main(flags)
