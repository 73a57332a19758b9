"""Where results are kept: a folder a theme, a file a CPU or GPU; each record says when and where.

A file holds one record for each run whose results are still the latest of their names.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import torch
from pydantic import BaseModel, Field, ValidationError

from linattn_core.errors import expected, quote
from linattn_lab.machine import Limits, Machine
from linattn_models.basics.files import replace_files
from linattn_models.training import environment

DIGITS = 4  # significant digits; measurements are not more precise

Result = TypeVar("Result")
Model = TypeVar("Model", bound=BaseModel)


class Record(BaseModel, Generic[Result], frozen=True):
    """What one command measured.

    Args:
        date: of the day, as in ISO 8601.
        commit: of the checkout.
        limits: the machine's, where they were measured.
        results: by name.
    """

    command: str
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    commit: str
    machine: Machine
    limits: Limits | None = None
    results: dict[str, Result]


class _File(BaseModel, Generic[Model]):
    records: list[Model]


def current_commit() -> str:
    """The commit of this checkout; to be asked before the work, at whose end it may be another."""
    return str(environment(torch.device("cpu"))["commit"] or "unknown")[:7]


def new_record(
    command: str,
    commit: str,
    machine: Machine,
    results: dict[str, Result],
    limits: Limits | None = None,
) -> Record[Result]:
    """Returns a record of today."""
    return Record(
        command=command,
        date=str(environment(torch.device("cpu"))["date"]),
        commit=commit,
        machine=machine,
        limits=limits,
        results=results,
    )


def record_file(folder: Path, theme: str, place: str) -> Path:
    """Returns the file of a theme's results on "cpu" or a GPU, as `Machine.place` names it."""
    return folder / theme / ("results.json" if place == "cpu" else f"results-{place}.json")


def record_files(folder: Path, theme: str) -> list[Path]:
    """Returns the files of a theme's results, of the CPU and of GPUs."""
    return sorted((folder / theme).glob("results*.json"))


def read_records(file: Path, kind: type[Record[Result]]) -> list[Record[Result]]:
    """Returns the records of a file, the latest first; none where there is no file.

    Args:
        kind: such as Record[CaseResult]; of Record[Any], results are plain JSON values.
    """
    if not file.exists():
        return []
    return read_model(file, _File[kind]).records  # type: ignore[valid-type]


def read_model(
    file: Path,
    kind: type[Model],
    advice: str = "restore the file, or move it away and measure again",
) -> Model:
    """Returns the content of a JSON file, which another program or a hand may have written."""
    try:
        return kind.model_validate_json(file.read_bytes())
    except ValidationError as error:
        fault = error.errors()[0]
        got = quote(": ".join([*map(str, fault["loc"]), fault["msg"]]))
        raise ValueError(expected(str(file), "JSON as it was written", got, advice)) from None


def add_record(file: Path, record: Record[Any]) -> None:
    """Adds a record to a file; results of the same names leave the older records.

    Another process that adds one to the same file waits for this one.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    _replace_results(file, record.results, [record])


def remove_results(file: Path, names: Collection[str]) -> None:
    """Removes the results of these names from the records of a file, which need not exist."""
    if file.exists():
        _replace_results(file, names, [])


def latest_results(records: Iterable[Record[Result]]) -> dict[str, Result]:
    """Returns the results of all records by name."""
    return {name: result for record in records for name, result in record.results.items()}


def _replace_results(file: Path, names: Collection[str], newer: list[Record[Any]]) -> None:
    """Removes the results of these names and puts newer records before the others."""
    with replace_files(file.parent, file.name) as fresh:  # locked before the file is read
        older = [_without(each, names) for each in read_records(file, Record[Any])]
        records = [*newer, *(each for each in older if each.results)]
        text = ",\n".join(map(_to_json, records))
        (fresh / file.name).write_bytes(f'{{"records": [\n{text}\n]}}\n'.encode())


def _without(record: Record[Result], names: Collection[str]) -> Record[Result]:
    kept = {name: x for name, x in record.results.items() if name not in names}
    return record.model_copy(update={"results": kept})


def _to_json(record: Record[Any]) -> str:
    """The record with a line for each result, so that changes can be read."""
    values = _round(record.model_dump(mode="json", exclude_defaults=True))
    results = values.pop("results")
    lines = ",\n".join(f"{json.dumps(name)}: {_compact(x)}" for name, x in results.items())
    return f'{_compact(values)[:-1]},"results":{{\n{lines}\n}}}}'


def _compact(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [_round(each) for each in value]
    if isinstance(value, dict):
        return {name: _round(each) for name, each in value.items()}
    return value
