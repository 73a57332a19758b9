"""A record says when and where; a newer result takes the place of an older one."""

from __future__ import annotations

import subprocess
import sys
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
    remove_results,
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
    record = new_record(
        "a command", "abc1234", MACHINE, {"a": Value(name="x", pair=Pair(1.23456, 2))}, limits
    )
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
        add_record(file, new_record(command, "abc1234", MACHINE, results))

    records = read_records(file, Record[Any])
    assert [record.command for record in records] == ["third", "second"]
    assert latest_results(records) == {"a": 3, "b": 2, "c": 2}


def test_results_are_removed_by_their_names(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    remove_results(file, ["a"])
    assert not file.exists()
    for name in ("a", "b", "c"):
        add_record(file, new_record(f"makes {name}", "abc1234", MACHINE, {name: 1}))

    remove_results(file, ["a", "c", "unknown"])
    (left,) = read_records(file, Record[Any])
    assert (left.command, left.results) == ("makes b", {"b": 1})
    remove_results(file, ["b"])
    assert read_records(file, Record[Any]) == []


def test_processes_that_add_to_one_file_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    program = """
import pathlib, sys, time
from linattn_lab.store import add_record, new_record
from tests.lab.test_store import MACHINE
folder = pathlib.Path(sys.argv[1]).parent
(folder / sys.argv[2]).touch()
while not all((folder / name).exists() for name in ("first", "second")):
    time.sleep(0.001)
for number in range(20):
    name = f"{sys.argv[2]}-{number}"
    add_record(pathlib.Path(sys.argv[1]), new_record("adds", "abc1234", MACHINE, {name: number}))
"""
    root = Path(__file__).parents[2]
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(file), name], cwd=root)
        for name in ("first", "second")
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len(latest_results(read_records(file, Record[Any]))) == 40


@pytest.mark.parametrize("text", ["", "[]", '{"records": [{"command": 3}]}'])
def test_a_damaged_file_is_named_and_stays(tmp_path: Path, text: str) -> None:
    file = tmp_path / "results.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"results\.json"):
        add_record(file, new_record("a command", "abc1234", MACHINE, {"a": 1}))
    assert file.read_text() == text
