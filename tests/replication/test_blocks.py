"""The numbers in documents: written between markers, from the records."""

from __future__ import annotations

import pytest

from linattn_lab.runs import read_runs
from linattn_lab.seeds import compare_rows, merge_seeds, read_figures
from replication.blocks import BLOCK, BLOCKS, DOCUMENTS, fill_blocks
from replication.experiments import ROOT
from replication.published import read_published
from replication.speed_tables import RESULTS

BEGIN, END = "<!-- numbers: {}, by `a command` -->\n", "<!-- end of numbers -->"


def test_only_what_is_between_the_markers_changes() -> None:
    text = f"before 1\n{BEGIN.format('copy')}| old |\n{END}\nafter 2\n"

    filled = fill_blocks(text, read_published())

    assert filled.startswith(f"before 1\n{BEGIN.format('copy')}| attention ")
    assert filled.endswith(f"{END}\nafter 2\n")
    assert "old" not in filled
    assert fill_blocks(filled, read_published()) == filled


def test_numbers_that_nobody_writes_are_refused() -> None:
    with pytest.raises(ValueError, match="copi"):
        fill_blocks(BEGIN.format("copi") + END, [])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_kept_numbers_are_those_of_the_kept_records(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")

    assert BLOCK.search(text)
    assert fill_blocks(text, read_published()) == text, "run python -m nox -s report"


def test_what_readme_says_of_text_is_no_noise_of_seeds() -> None:
    """The attention of `TransformerConfig.language` learns text better than softmax."""
    runs = {name: run["summary"] for name, run in read_runs(RESULTS / "text_generation").items()}
    rows = {x: merge_seeds(runs)[x] for x in ("gated-window", "softmax")}

    words = compare_rows(read_figures(rows, "loss", "loss"), "loss", "softmax")
    assert words == "less for gated-window"


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_written_without_any_replication(name: str) -> None:
    assert BLOCKS[name]([]).strip()
