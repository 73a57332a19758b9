"""The numbers in documents: written between markers, from the records."""

from __future__ import annotations

import re

import pytest

from replication.abstract import abstract
from replication.blocks import BLOCK, BLOCKS, DOCUMENTS, fill_blocks
from replication.claims import MARGINS
from replication.experiments import ROOT
from replication.paper_tables import (
    CACHE,
    RECOGNIZERS,
    SOFTMAX,
    bits,
    gain,
    generation,
    paper_number,
)
from replication.records import figures_of, read_evidence

BEGIN, END = "<!-- numbers: {}, by `a command` -->\n", "<!-- end of numbers -->"


def test_only_what_is_between_the_markers_changes() -> None:
    text = f"before 1\n{BEGIN.format('copy')}| old |\n{END}\nafter 2\n"

    filled = fill_blocks(text, read_evidence())

    assert filled.startswith(f"before 1\n{BEGIN.format('copy')}| attention ")
    assert filled.endswith(f"{END}\nafter 2\n")
    assert "old" not in filled
    assert fill_blocks(filled, read_evidence()) == filled


def test_numbers_that_nobody_writes_are_refused() -> None:
    with pytest.raises(ValueError, match="copi"):
        fill_blocks(BEGIN.format("copi") + END, [])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_kept_numbers_are_those_of_the_kept_records(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")

    assert BLOCK.search(text)
    assert fill_blocks(text, read_evidence()) == text, "run python -m nox -s report"


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_written_without_any_replication(name: str) -> None:
    assert BLOCKS[name]([]).strip()


def test_the_words_of_the_abstract_are_true_of_the_records() -> None:
    evidence = read_evidence()
    images, speech = generation(evidence, "cifar10", "GPU"), figures_of(evidence, "speech")
    reruns, cache = (gain(images, "linear", rival, many=True) or 0 for rival in (SOFTMAX, CACHE))
    mnist, words = figures_of(evidence, "mnist"), abstract(evidence)
    errors = {name: speech[f"{name}/per"] for name in RECOGNIZERS}

    assert len(re.findall(r"\.(?:\s|$)", words)) == 5
    assert cache < reruns
    assert errors["lstm"] < min(error for name, error in errors.items() if name != "lstm")
    assert paper_number("table3/lstm/per") == max(paper_number(f"table3/{x}/per") for x in errors)
    ratio = mnist["softmax/bits-equal-time"] / mnist["linear/bits-equal-time"]
    assert 1 / MARGINS["bits"][1] < ratio < MARGINS["bits"][1]
    assert "within the noise" in words


def test_what_was_trained_too_little_is_in_no_row_of_the_table() -> None:
    table, _, words = bits(read_evidence()).partition("\n\n")

    assert "MNIST, linear" in table and "CIFAR-10" not in table and "lsh" not in table
    assert "CIFAR-10 (40 updates): linear, softmax" in words
