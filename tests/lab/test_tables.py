"""Numbers and tables in Markdown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linattn_lab.tables import (
    code,
    decimals,
    figure,
    literal,
    markdown_table,
    memory,
    name_environments,
    seconds,
)


def test_cells_stay_as_they_are_written_and_columns_line_up() -> None:
    table = markdown_table(["name", "n"], [["a", "1.50"], ["longer", "1,000"]])
    lines = table.splitlines()
    assert [cell.strip() for cell in lines[2].strip("|").split("|")] == ["a", "1.50"]
    assert lines[3] == "| longer | 1,000 |"
    assert lines[1].startswith("|:") and lines[1].endswith(":|")
    assert len(set(map(len, lines))) == 1 and table.endswith("|\n")


@given(st.one_of(st.text(), st.text(alphabet="![](<>)`_*|\\&;$ {}x\n")))
def test_text_of_a_record_is_never_markup(text: str) -> None:
    parser = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    shown = " ".join("".join(x if x.isprintable() else " " for x in text).split())
    (inline,) = [x for x in parser.parse(f"x {literal(text)} y") if x.type == "inline"]
    assert {x.type for x in inline.children} == {"text"}
    assert "".join(x.content for x in inline.children).split() == f"x {shown} y".split()
    table = markdown_table(["a", "b"], [[f"x{text}", "1"]])
    cells = [x.content for x in parser.parse(table) if x.type == "inline"]
    assert len(cells) == 4 and cells[3] == "1"
    assert table.count("\n") == 3


def test_what_was_not_finite_is_a_dash() -> None:
    assert [decimals(value, 3) for value in (1.23456, 0.0, None)] == ["1.235", "0.000", "-"]
    assert [figure(x) for x in (None, 0.004, 142.8, 8651.4)] == ["-", "0.00400", "143", "8,651"]


def test_code_is_one_line() -> None:
    assert code("a `b`\nc") == "`a 'b' c`"


def test_environments_are_named_once() -> None:
    one = {
        "date": "2026-01-02", "commit": "0123456789", "torch": "2", "device": "cpu", "threads": 1
    }  # fmt: skip
    two = {**one, "commit": None, "threads": 2}
    assert name_environments([one, one]) == (
        "on 2026-01-02 at commit 0123456; torch 2, cpu, threads: 1"
    )
    assert "0123456, unknown" in name_environments([one, two])


def test_units_fit_the_size() -> None:
    assert [seconds(x) for x in (2.0, 0.25, 3.1e-5, None)] == ["2.00 s", "250 ms", "31.0 us", "-"]
    assert [seconds(0.9997), memory(999_700_000)] == ["1.00 s", "1.00 GB"]
    assert [memory(x) for x in (1.5e9, 2.5e8, 640, None)] == ["1.50 GB", "250 MB", "640 B", "-"]
