"""The table of errors: each backend's over the reference's."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.errors import NAMES, Flags, compare_errors, main


def test_the_reference_has_its_own_errors() -> None:
    assert compare_errors(100, 8, "reference") == [(1.0, 1.0)] * len(NAMES)


def test_the_table_has_a_row_for_each_size(tmp_path: Path) -> None:
    main(Flags(lengths=(64, 300), widths=(16,), backend="reference", out=tmp_path))

    lines = (tmp_path / "operator" / "errors.md").read_text(encoding="utf-8").splitlines()
    table = [line.strip("|").split("|") for line in lines if line.startswith("|")][2:]
    cells = ["1.00, 1.00"] * len(NAMES)
    assert [[x.strip() for x in row] for row in table] == [[n, "16", *cells] for n in ("64", "300")]


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (Flags(lengths=(64, 1)), "--lengths"),
        (Flags(lengths=()), "--lengths"),
        (Flags(widths=(0,)), "--widths"),
    ],
)
def test_sizes_without_an_error_are_refused(flags: Flags, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}"):
        main(flags)
