"""Run folders are read as they were written; a lock keeps a second process out."""

from __future__ import annotations

import json
import os
import platform
import shutil
from pathlib import Path

import pytest
import torch

from linattn_models.training import RunFolder, write_json
from tests.training.toy import toy_evaluate, toy_model, toy_run


def test_weights_are_those_the_summary_speaks_of(unbroken: Path) -> None:
    model = toy_model()
    assert RunFolder(unbroken).load_weights(model) == 12
    with torch.no_grad():
        assert toy_evaluate(model.eval()) == RunFolder(unbroken).summary()["metrics"]


def test_metrics_leave_out_a_line_still_being_written(out: Path) -> None:
    out.mkdir()
    (out / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert RunFolder(out).metrics() == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("line", ['{"step": ', "[1]", "\x00"])
def test_a_broken_line_is_named(out: Path, line: str) -> None:
    out.mkdir()
    (out / "metrics.jsonl").write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2: expected"):
        RunFolder(out).metrics()


def test_what_is_missing_is_named(out: Path) -> None:
    folder = RunFolder(out)
    assert not folder.holds_run()
    assert folder.latest_checkpoint() is None
    with pytest.raises(
        ValueError, match=r"summary\.json: expected the record of a run, got no file"
    ):
        folder.summary()
    with pytest.raises(ValueError, match=r"metrics\.jsonl: expected the log of a run, got no file"):
        folder.metrics()
    with pytest.raises(ValueError, match="expected a checkpoint, got none; train there first"):
        folder.load_weights(toy_model())


def test_a_locked_folder_says_who_holds_it(out: Path) -> None:
    folder = RunFolder(out)
    with folder.locked():
        with pytest.raises(ValueError, match="expected a run that no other process") as refusal:
            toy_run(out)
        assert f"got process {os.getpid()} on {platform.node()} since 2" in str(refusal.value)
        with (
            pytest.raises(ValueError, match="no other process writes"),
            RunFolder(out).locked(),
        ):
            pass
    toy_run(out, steps=1)


def test_a_file_of_the_lock_that_is_damaged_does_not_hide_the_lock(out: Path) -> None:
    with RunFolder(out).locked():
        (out / ".lock-holder.json").write_text("{")
        with pytest.raises(ValueError, match="got another process; wait"):
            toy_run(out)


def test_lines_of_another_writer_are_noticed(out: Path) -> None:
    def appending(model: torch.nn.Module) -> dict[str, float]:
        with (out / "metrics.jsonl").open("ab") as file:
            file.write(b"{}\n")
        return toy_evaluate(model)

    def replacing(model: torch.nn.Module) -> dict[str, float]:
        RunFolder(out).cut_metrics(1)  # as a second process that resumes does
        return toy_evaluate(model)

    for evaluate in (appending, replacing):
        with pytest.raises(ValueError, match="another process writes into the run"):
            toy_run(out, evaluate=evaluate, eval_every=2, checkpoint_every=2)
        shutil.rmtree(out)


def test_json_without_a_meaning_is_not_written(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": (1, 2.5)})
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", float("nan"))
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": [1, 2.5]}
