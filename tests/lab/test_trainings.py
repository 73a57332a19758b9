"""Runs side by side: which are made, kept or refused, and within which budgets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from linattn_lab.trainings import Trainings, Variant, curves, updates_within, with_steps
from linattn_lab.updates import UpdateTimes, measure_updates, read_times
from linattn_models.training import RunFolder, TrainingFlags
from tests.training.toy import Crash, CrashingData, ToyData, toy_loss, toy_model, toy_run

FLAGS = TrainingFlags(steps=4, batch_size=4, learning_rate=0.02, log_every=1, warmup_steps=0)


class Toy:
    """A comparison of toy runs that keeps which of them were trained, and whether resumed."""

    def __init__(self, out: Path) -> None:
        self.out, self.trained = out, list[tuple[str, bool]]()
        self.data: ToyData | None = None

    def of(self, *names: str, flags: TrainingFlags = FLAGS, **settings: Any) -> Trainings:
        return Trainings(self.out, [self.variant(name, flags, settings) for name in names])

    def variant(self, name: str, flags: TrainingFlags, settings: dict[str, Any]) -> Variant:
        def train(flags: TrainingFlags, out: Path, resume: bool) -> object:
            self.trained.append((name, resume))
            changes = {"steps": flags.steps, "warmup_steps": 0, "checkpoint_every": 2}
            return toy_run(out, data=self.data, resume=resume, **changes)

        return Variant(name, flags, train, {"app": "toy", "model.width": 8, **settings})


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path / "out")


def test_a_run_is_made_then_resumed_if_it_lost_its_end_then_kept(toy: Toy) -> None:
    toy.data = CrashingData(3)
    with pytest.raises(Crash):
        toy.of("a").equal_updates()
    toy.data = None
    for _ in range(2):
        runs = toy.of("a", "b").equal_updates()
        assert {name: run.summary()["steps"] for name, run in runs.items()} == {"a": 4, "b": 4}
    assert toy.trained == [("a", False), ("a", True), ("b", False)]


def test_a_summary_that_the_application_did_not_complete_is_made_again(toy: Toy) -> None:
    toy.of("a").equal_updates("folder")
    untested = Trainings(toy.out, toy.of("a").variants, lambda summary: "tested" in summary)
    untested.equal_updates("folder")
    assert toy.trained == [("a", False), ("a", True)]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"flags": TrainingFlags(steps=9, batch_size=4)}, "training.steps"),
        ({"flags": replace(FLAGS, seed=1)}, "training.seed"),
        ({"flags": replace(FLAGS, learning_rate=0.5)}, "training.learning_rate"),
        ({"app": "other"}, "app"),
        ({"model.width": 9}, "model.width"),
        ({"model.width.more": 9}, "model.width.more"),
    ],
)
def test_a_run_of_another_configuration_is_refused(
    toy: Toy, changes: dict[str, Any], named: str
) -> None:
    toy.of("a").equal_updates()
    other = toy.of("a", **changes)
    for attempt in (other.equal_updates, other.find_complete):
        with pytest.raises(ValueError, match=f"{named} of the run"):
            attempt()
    assert toy.trained == [("a", False)]


def test_equal_time_is_as_many_updates_as_fit(toy: Toy) -> None:
    timed = toy.of("a", "b").within(1.0, {"a": 0.3, "b": 0.5})
    assert [variant.flags.steps for variant in timed.variants] == [3, 2]
    assert updates_within(7 * 0.1, 0.1) == 7  # 0.7000000000000001
    assert updates_within(0.01, 0.3) == 1


def test_runs_that_have_ended_are_told_from_those_that_have_not(toy: Toy) -> None:
    toy.of("a").equal_updates()
    toy.data = CrashingData(3)
    with pytest.raises(Crash):
        toy.of("b").equal_updates()
    runs, absent = toy.of("a", "b", "c").find_complete()
    assert list(runs) == ["a"]
    assert list(absent) == ["b"] and "of 4 updates" in absent["b"]


@pytest.mark.parametrize("steps", [1, 9, 400])
def test_other_steps_keep_eight_evaluations(steps: int) -> None:
    flags = with_steps(TrainingFlags(steps=100, batch_size=2, eval_every=20), steps)
    assert flags.steps == steps
    assert flags.eval_every == min(20, max(1, steps // 8)) and flags.checkpoint_every is not None


def test_curves_go_over_updates_or_at_a_pace(unbroken: Path) -> None:
    runs = {"a": RunFolder(unbroken)}
    assert [x for x, _ in curves(runs, "error")["a"]] == [3, 6, 9, 12]
    paced = curves(runs, "error", pace={"a": 0.5})["a"]
    assert [x for x, _ in paced] == [1.5, 3, 4.5, 6]


def test_updates_are_measured_for_every_model() -> None:
    models = {"a": toy_model(), "b": toy_model().eval()}
    times = UpdateTimes(**measure_updates(models, ToyData(), toy_loss, FLAGS, rounds=2))
    assert times.seconds.keys() == models.keys()
    assert times.rounds == 2 and times.environment["torch"] == torch.__version__


def test_times_are_measured_once(tmp_path: Path) -> None:
    file, calls = tmp_path / "timings.json", []

    def measure() -> dict[str, Any]:
        calls.append(1)
        where = {"threads": torch.get_num_threads()}
        return {"seconds": {"a": 0.5}, "rounds": 1, "environment": where, "bytes": {"a": 9}}

    first, second = (read_times(file, {"preset": "p"}, ["a"], measure) for _ in range(2))
    assert first == second and first.seconds == {"a": 0.5}
    assert first.model_extra == {"preset": "p", "bytes": {"a": 9}}
    assert calls == [1]
    for about, names in (({"preset": "q"}, ["a"]), ({"preset": "p"}, ["a", "b"])):
        with pytest.raises(ValueError, match="choose another --out"):
            read_times(file, about, names, measure)


def test_times_of_other_threads_are_used_with_a_warning(tmp_path: Path) -> None:
    file, other = tmp_path / "timings.json", torch.get_num_threads() + 1
    times = {"seconds": {"a": 0.5}, "rounds": 1, "environment": {"threads": other}}
    read_times(file, {}, ["a"], lambda: times)
    with pytest.warns(UserWarning, match=f"{other} threads"):
        assert read_times(file, {}, ["a"], dict).seconds == {"a": 0.5}


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"seconds": {}}', '{"seconds": {"a": 0}, "rounds": 1}']
)
def test_times_that_are_damaged_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "timings.json").write_text(content)
    with pytest.raises(ValueError, match=r"timings\.json.*expected"):
        read_times(tmp_path / "timings.json", {}, ["a"], dict)
