"""Runs side by side: which are made, kept or refused, and within which budgets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from linattn_models.training import (
    RunFolder,
    TrainingFlags,
    app_config,
    copy_records,
    measure_updates,
    publish,
    recorded_times,
    require_run,
    run_summary,
    trained_run,
    updates_within,
    with_steps,
    write_json,
)
from tests.training.toy import Crash, CrashingData, ToyData, logged, toy_loss, toy_model, toy_run


def test_a_run_is_made_then_kept_then_resumed_if_it_lost_its_end(out: Path) -> None:
    resumed: list[bool] = []

    def train(resume: bool, **changes: Any) -> None:
        resumed.append(resume)
        toy_run(out, steps=4, checkpoint_every=2, resume=resume, **changes)

    with pytest.raises(Crash):
        trained_run(out, lambda resume: train(resume, data=CrashingData(3)), {})
    for _ in range(2):
        assert trained_run(out, train, {"training.steps": 4}).summary()["steps"] == 4
    assert resumed == [False, True]
    trained_run(out, train, {}, ended=lambda summary: "tested" in summary)
    assert resumed == [False, True, True]


def test_a_run_of_another_configuration_is_refused(unbroken: Path) -> None:
    run = RunFolder(unbroken)
    require_run(run, {"app": "toy", "training.steps": 12, "model.width": 8})
    with pytest.raises(ValueError, match=r"training\.steps of the run in .*: expected 9, got 12"):
        require_run(run, {"app": "toy", "training.steps": 9})
    with pytest.raises(ValueError, match="expected a run of other, got one of 'toy'"):
        run_summary(run, "other")
    assert run_summary(run, "toy") == run.summary()


def test_a_run_of_another_application_or_without_a_value_is_refused(
    unbroken: Path,
) -> None:
    run = RunFolder(unbroken)
    assert app_config(run, "toy", ("model", "training")) == run.config()
    with pytest.raises(ValueError, match="expected a run of other, got one of 'toy'"):
        app_config(run, "other", ())
    with pytest.raises(ValueError, match=r"config\.json: expected abc, xyz, got none in it"):
        app_config(run, "toy", ("xyz", "model", "abc"))


def test_records_are_copied_without_weights(unbroken: Path, tmp_path: Path) -> None:
    copy_records(RunFolder(unbroken), tmp_path / "records")
    names = sorted(path.name for path in (tmp_path / "records").iterdir())
    assert names == ["config.json", "metrics.jsonl", "summary.json"]
    assert logged(tmp_path / "records") == logged(unbroken)


def test_copied_records_are_compact_and_hold_the_same(unbroken: Path, tmp_path: Path) -> None:
    run, copy = RunFolder(unbroken), RunFolder(tmp_path / "copy" / unbroken.name)
    results = {"runs": {"a": [1, 2.5e-17, None, "\u03c6 : ,"]}, "nested": {"empty": {}}}
    write_json(unbroken.parent / "results.json", results)
    publish(unbroken.parent, tmp_path / "copy", ["results.json"], [run])

    assert copy.config() == run.config()
    assert copy.summary() == run.summary()
    assert copy.metrics() == run.metrics()
    assert json.loads((tmp_path / "copy" / "results.json").read_text()) == results
    for file in (copy.config_file, copy.summary_file, tmp_path / "copy" / "results.json"):
        text = file.read_text()
        compact = json.dumps(json.loads(text), separators=(",", ":"))
        assert text == compact + "\n"
        assert len(text.splitlines()) == 1


def test_a_damaged_file_is_named_and_not_published(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"runs": ')
    with pytest.raises(ValueError, match=r"results\.json: expected whole JSON"):
        publish(tmp_path, tmp_path / "copy", ["results.json"])
    assert not list((tmp_path / "copy").iterdir())


def test_as_many_updates_as_fit_into_a_time() -> None:
    assert updates_within(1.0, 0.3) == 3
    assert updates_within(7 * 0.1, 0.1) == 7  # 0.7000000000000001
    assert updates_within(0.01, 0.3) == 1


@pytest.mark.parametrize("steps", [1, 9, 400])
def test_other_steps_keep_eight_evaluations(steps: int) -> None:
    flags = with_steps(TrainingFlags(steps=100, batch_size=2, eval_every=20), steps)
    assert flags.steps == steps
    assert flags.eval_every == min(20, max(1, steps // 8)) and flags.checkpoint_every is not None


def test_updates_are_timed_for_every_model() -> None:
    flags = TrainingFlags(steps=9, batch_size=4, warmup_steps=None)
    models = {"a": toy_model(), "b": toy_model().eval()}
    seconds, environment = measure_updates(models, ToyData(), toy_loss, flags, rounds=2)
    assert seconds.keys() == models.keys() and min(seconds.values()) > 0
    assert environment["torch"] == torch.__version__


def test_what_is_published_stands_where_it_was_and_has_no_weights(
    unbroken: Path, tmp_path: Path
) -> None:
    (unbroken.parent / "table.md").write_text("| a |")
    publish(unbroken.parent, tmp_path / "copy", ["table.md"], [RunFolder(unbroken)])
    files = {str(x.relative_to(tmp_path / "copy")) for x in tmp_path.rglob("*") if x.is_file()}
    records = {"config.json", "metrics.jsonl", "summary.json"}
    assert files == {"table.md", *(f"{unbroken.name}/{name}" for name in records)}


def test_times_are_measured_once(tmp_path: Path) -> None:
    file, calls = tmp_path / "timings.json", []

    def measure() -> tuple[dict[str, float], dict[str, object]]:
        calls.append(1)
        return {"a": 0.5}, {"rounds": 1, "environment": {}}

    for _ in range(2):
        timing = recorded_times(file, {"preset": "p"}, ["a"], measure)
        assert timing == {"preset": "p", "seconds": {"a": 0.5}, "rounds": 1, "environment": {}}
    assert calls == [1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "a fault in it"),
        ('{"seconds": {}}', "got {}"),
        ('{"seconds": {"a": 0}}', "got {'a': 0}"),
        ('{"seconds": {"a": 1}, "rounds": 1}', "expected environment, got none in it"),
    ],
)
def test_times_that_are_damaged_are_refused(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "timings.json").write_text(content)
    with pytest.raises(ValueError, match=words) as raised:
        recorded_times(tmp_path / "timings.json", {}, ["a"], lambda: ({}, {}))
    assert "remove it, and they are measured again" in str(raised.value)


def test_json_without_a_meaning_is_not_written(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": (1, 2.5)})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": [1, 2.5]}
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", float("nan"))
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": [1, 2.5]}
