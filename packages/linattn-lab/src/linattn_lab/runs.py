"""Run folders: checks of what a run is, and their records in one file, without weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import numpy.typing as npt

from linattn_core.errors import expected, quote
from linattn_models import read_config
from linattn_models.basics.files import replace_file
from linattn_models.basics.validation import json_object
from linattn_models.training import RunFolder, write_json
from linattn_models.training.config import flatten
from linattn_models.weights.model_files import is_saved_model

RUNS = "runs.jsonl"


def data_digest(*parts: npt.NDArray[Any]) -> str:
    """A hash of arrays: with it in `config.json`, a run is not resumed on other data.

    Cost: a second for each gigabyte or two.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{part.dtype.str} {part.shape}".encode())
        digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def require_run(run: RunFolder, settings: Mapping[str, object]) -> None:
    """Refuses a run whose `config.json` differs from what is expected.

    Args:
        settings: values by name, nested names with dots: {"training.steps": 20}.
    """
    config = flatten(run.config())
    for name, wanted in settings.items():
        if config.get(name) != wanted:
            advice = f"choose another folder than {run.path}"
            what, got = f"{name} of the run in {run.path}", config.get(name)
            raise ValueError(expected(what, wanted, got, advice))


def run_summary(run: RunFolder, app: str) -> dict[str, Any]:
    """The summary of a run of `app` that has ended."""
    return _of_app(run.summary(), run, app)


def app_config(run: RunFolder, app: str, names: Collection[str]) -> dict[str, Any]:
    """What describes a trained model of `app`: the `config.json` of its run.

    Of a model that was saved with the summary of its run as `extra`, it is that summary.

    Args:
        names: the values that must be in it.
    """
    saved = is_saved_model(run.path)
    config = _of_app(read_config(run.path).get("extra", {}) if saved else run.config(), run, app)
    if absent := sorted(set(names) - config.keys()):
        raise ValueError(expected(str(run.config_file), ", ".join(absent), "none in it"))
    return config


def _of_app(record: dict[str, Any], run: RunFolder, app: str) -> dict[str, Any]:
    if record.get("app") != app:
        got = f"one of {quote(record.get('app'))}"
        raise ValueError(expected(str(run.path), f"a run of {app}", got))
    return record


def make_folders(*folders: Path | None) -> None:
    """Creates the folders that are given, and tries to write: refused now, not after the work."""
    for folder in folders:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder):
                pass


def publish(out: Path, folder: Path, files: Iterable[str], runs: Iterable[RunFolder] = ()) -> None:
    """Copies files of `out` to the same places in `folder`, and the records of runs into RUNS.

    The copies of .json files are compact. RUNS has a line for each run, without its weights:
    {"run": its folder in `out`, "config": ..., "summary": ..., "metrics": [...]}.
    """
    make_folders(folder)
    for file in files:
        _copy(out / file, folder / file)
    named = {run.path.relative_to(out).as_posix(): run for run in runs}
    if named:
        lines = [_to_line(name, run) for name, run in named.items()]
        replace_file(folder / RUNS, "".join(lines).encode())


def read_runs(folder: Path) -> dict[str, dict[str, Any]]:
    """The records of RUNS by the name of the run, with its config, summary and metrics."""
    file = folder / RUNS
    records = [json_object(line, str(file)) for line in file.read_bytes().splitlines()]
    return {record["run"]: record for record in records}


def _to_line(name: str, run: RunFolder) -> str:
    record = {"config": run.config(), "summary": run.summary(), "metrics": run.metrics()}
    text = json.dumps({"run": name, **record}, allow_nan=False, separators=(",", ":"))
    return f"{text}\n"


def _copy(file: Path, copy: Path) -> None:
    content = file.read_bytes()
    if file.suffix == ".json":
        write_json(copy, json_object(content, str(file)), compact=True)
    else:
        replace_file(copy, content)
