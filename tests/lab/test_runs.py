"""Run folders: checks of what a run is, and copies of its records."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from linattn_lab.runs import (
    RUNS,
    app_config,
    data_digest,
    make_folders,
    publish,
    read_runs,
    run_summary,
)
from linattn_models import Transformer, TransformerConfig, save
from linattn_models.training import RunFolder, write_json
from linattn_models.weights.model_files import is_saved_model


def test_a_run_of_another_application_or_without_a_value_is_refused(unbroken: Path) -> None:
    run = RunFolder(unbroken)
    assert app_config(run, "toy", ("model", "training")) == run.config()
    assert run_summary(run, "toy") == run.summary()
    with pytest.raises(ValueError, match="a run of other"):
        app_config(run, "other", ())
    with pytest.raises(ValueError, match="a run of other"):
        run_summary(run, "other")
    with pytest.raises(ValueError, match=r"config\.json: expected abc, xyz"):
        app_config(run, "toy", ("xyz", "model", "abc"))


def test_a_saved_model_has_the_summary_of_its_run(unbroken: Path, tmp_path: Path) -> None:
    summary = run_summary(RunFolder(unbroken), "toy")
    model = Transformer(TransformerConfig(num_layers=1, num_heads=1, head_dim=4, ffn_dim=4))
    save(model, tmp_path, extra=summary)
    assert is_saved_model(tmp_path) and not is_saved_model(unbroken)
    assert app_config(RunFolder(tmp_path), "toy", ("steps", "metrics")) == summary
    with pytest.raises(ValueError, match="a run of other"):
        app_config(RunFolder(tmp_path), "other", ())


def test_a_digest_is_that_of_all_values_shapes_and_types() -> None:
    data = np.arange(6, dtype=np.uint8).reshape(2, 3)
    others = [
        (data + 1,), (data.reshape(3, 2),), (data.T,), (data.view(np.int8),), (data[:1], data[1:])
    ]  # fmt: skip
    assert len({data_digest(*parts) for parts in [(data,), *others]}) == 1 + len(others)
    assert data_digest(data) == data_digest(np.asfortranarray(data))


def test_what_is_published_is_compact_and_has_the_records_of_runs_in_one_file(
    unbroken: Path, tmp_path: Path
) -> None:
    run, copy = RunFolder(unbroken), tmp_path / "copy"
    results = {"runs": {"a": [1, 2.5e-17, None, "\u03c6 : ,"]}, "nested": {"empty": {}}}
    write_json(unbroken.parent / "results.json", results)
    publish(unbroken.parent, copy, ["results.json"], [run, run])

    assert {path.name for path in copy.iterdir()} == {"results.json", RUNS}
    record = {"config": run.config(), "summary": run.summary(), "metrics": run.metrics()}
    assert read_runs(copy) == {unbroken.name: {"run": unbroken.name, **record}}
    text = (copy / "results.json").read_text()
    assert json.loads(text) == results and text.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_folders(tmp_path / "new", None, tmp_path / "file")
    with pytest.raises(OSError, match="/proc"):
        make_folders(tmp_path / "new", Path("/proc"))
    assert list((tmp_path / "new").iterdir()) == []
