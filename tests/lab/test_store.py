"""A record says when and where; a newer result takes the place of an older one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from linattn_lab.machine import Limits, Machine
from linattn_lab.store import (
    Record,
    add_record,
    latest_results,
    new_record,
    read_records,
    record_file,
)

MACHINE = Machine(
    device="cpu", hardware="A processor", software="torch 2", backends="cpu", threads=2
)


class Pair(NamedTuple):
    low: float
    high: float


class Value(BaseModel, frozen=True):
    name: str
    pair: Pair | None = None


def test_a_record_comes_back_with_four_digits(tmp_path: Path) -> None:
    limits = Limits(gemm_float32=1.23456e9, copy_bandwidth=2e9)
    record = new_record("a command", MACHINE, {"a": Value(name="x", pair=Pair(1.23456, 2))}, limits)
    file = record_file(tmp_path, "theme", "cpu")
    add_record(file, record)

    (read,) = read_records(file, Record[Value])
    assert read.results == {"a": Value(name="x", pair=Pair(1.235, 2.0))}
    assert read.limits == Limits(gemm_float32=1.235e9, copy_bandwidth=2e9)
    assert (read.command, read.machine) == ("a command", MACHINE)
    assert (read.date, read.commit) == (record.date, record.commit)


def test_newer_results_replace_those_of_their_names(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    for command, results in (
        ("first", {"a": 1, "b": 1}), ("second", {"b": 2, "c": 2}), ("third", {"a": 3}),
    ):  # fmt: skip
        add_record(file, new_record(command, MACHINE, results))

    records = read_records(file, Record[Any])
    assert [record.command for record in records] == ["third", "second"]
    assert latest_results(records) == {"a": 3, "b": 2, "c": 2}


def test_devices_have_files_of_their_own(tmp_path: Path) -> None:
    assert record_file(tmp_path, "a", "cpu") != record_file(tmp_path, "a", "cuda")
    assert read_records(record_file(tmp_path, "a", "cuda"), Record[Any]) == []


@pytest.mark.parametrize("text", ["", "[]", '{"records": [{"command": 3}]}'])
def test_a_damaged_file_is_named_and_stays(tmp_path: Path, text: str) -> None:
    file = tmp_path / "results.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"results\.json"):
        add_record(file, new_record("a command", MACHINE, {"a": 1}))
    assert file.read_text() == text
