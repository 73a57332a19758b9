"""Runs: recorded, continued, published; a failure costs only itself."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from linattn_lab.store import add_record, record_file
from linattn_models.training import RunFolder
from replication import published
from replication.experiments import EXPERIMENTS, Experiment
from replication.paper import Flags, left_out, main, select
from replication.published import read_published
from replication.records import Evidence, latest, read_evidence

POSITIVE = Flags(("section3.2/positive",), preset="smoke")


@pytest.fixture
def flags(tmp_path: Path, experiments: dict[str, Experiment]) -> Flags:
    """Of the experiment that succeeds."""
    return dataclasses.replace(POSITIVE, out=tmp_path / "runs")


def count_runs(flags: Flags, name: str = "equations") -> int:
    file = flags.out / flags.preset / name / "runs.txt"
    return len(file.read_text()) if file.exists() else 0


def read_by_name(folder: Path) -> dict[str, Evidence]:
    return {each.experiment: each for each in read_evidence(folder)}


def test_a_run_leaves_a_record_that_says_when_and_where(flags: Flags) -> None:
    main(flags)

    record = read_by_name(flags.out / "smoke")["equations"].record
    assert record.results["equations"].figures == {"positive": 2.0}
    assert record.results["equations"].seconds > 0
    assert record.command == "python -m replication.paper equations --preset smoke"
    assert record.date and record.commit and record.machine.hardware


def test_what_has_a_record_is_not_run_again(flags: Flags) -> None:
    main(flags)
    main(flags)
    assert count_runs(flags) == 1

    (flags.out / "smoke" / "results.json").unlink()  # as after an interruption
    main(flags)
    assert count_runs(flags) == 2  # in the folder of the run before

    main(dataclasses.replace(flags, again=True))
    assert count_runs(flags) == 1  # from the start


def test_a_failure_is_recorded_and_the_others_go_on(
    flags: Flags, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # what failed is tried again
        with pytest.raises(SystemExit) as ended:
            main(dataclasses.replace(flags, claims=()))
        assert ended.value.code == 1

    known = read_by_name(flags.out / "smoke")
    assert "it is broken" in known["failing"].measurement.error
    assert known["equations"].figures == {"positive": 2.0}
    assert capsys.readouterr().err.count("it is broken") == 2


def test_a_figure_that_is_not_finite_fails(flags: Flags, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replication.run.read_run", lambda folder: {"positive": float("nan")})

    with pytest.raises(SystemExit):
        main(flags)

    assert "positive" in read_by_name(flags.out / "smoke")["equations"].measurement.error


def test_the_longest_runs_where_its_name_is_given(
    flags: Flags, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(dataclasses.replace(flags, claims=()))
    assert "mnist" in capsys.readouterr().out
    assert count_runs(flags, "mnist") == 0

    main(dataclasses.replace(flags, claims=("mnist",)))
    assert count_runs(flags, "mnist") == 1


def test_a_newer_record_replaces_the_older_one(
    flags: Flags, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    monkeypatch.setattr(published, "FOLDER", kept)
    publishing = dataclasses.replace(flags, preset="laptop", publish=True, again=True)
    main(publishing)
    first = read_by_name(kept)["equations"].record
    main(publishing)

    assert len(read_evidence(kept)) == 1
    assert read_by_name(kept)["equations"].record.results != first.results
    with pytest.raises(ValueError, match="--publish"):
        main(dataclasses.replace(publishing, preset="smoke"))


def test_pictures_of_trained_models_are_published(
    flags: Flags, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "FOLDER", tmp_path / "kept")
    flags = dataclasses.replace(flags, preset="laptop", publish=True)
    run = flags.out / "laptop" / "equations" / "updates" / "linear"
    run.mkdir(parents=True)
    (run / "samples.png").write_bytes(b"picture")
    (run / "completions.png").symlink_to(__file__)  # of what is outside, no copy is made
    summary = {
        "seed": 0,
        "parameters": 1,
        "steps": 1,
        "metrics": {},
        "environment": {"commit": "a" * 40},
    }
    (run / "summary.json").write_text(json.dumps(summary | {"train_seconds": 1e6}))
    line = {"step": 1, "split": "train", "seconds": 2.0, "loss": 0.5}
    (run / "metrics.jsonl").write_text(f"{json.dumps(line)}\n")

    main(flags)

    picture = tmp_path / "kept" / "pictures" / "equations" / "linear-samples.png"
    assert picture.read_bytes() == b"picture"
    assert list(picture.parent.iterdir()) == [picture]
    kept = read_by_name(tmp_path / "kept")["equations"]
    assert kept.measurement.curves == {"linear": [line]}
    assert kept.measurement.seconds == 1e6  # what trainings took before they continued
    assert kept.record.commit == "aaaaaaa"  # at which the trainings were made


def test_what_was_measured_later_is_kept(
    flags: Flags,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(published, "FOLDER", tmp_path / "kept")
    flags = dataclasses.replace(flags, preset="laptop", publish=True)
    main(flags)
    record = read_by_name(tmp_path / "kept")["equations"].record
    later = record.model_copy(update={"date": "2999-01-01"})
    add_record(record_file(tmp_path, "kept", "cpu"), later)

    main(flags)

    assert read_by_name(tmp_path / "kept")["equations"].record == later
    assert "2999-01-01" in capsys.readouterr().out


def test_the_tables_show_the_latest_measurement_of_any_device() -> None:
    each = read_published()[0]
    newer = each.record.model_copy(update={"date": "2999-01-01"})
    both = [Evidence(each.experiment, newer), each]
    assert latest(both) == latest(both[::-1]) == {each.experiment: both[0]}


def test_what_this_machine_lacks_is_named(
    flags: Flags,
    experiments: dict[str, Experiment],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LINATTN_DATA", str(flags.out))
    needy = experiments["equations"].model_copy(
        update={"needs": {"smoke": "no-such-data"}, "missing": "download it"}
    )
    monkeypatch.setitem(experiments, "equations", needy)

    main(flags)

    captured = capsys.readouterr()
    assert "no-such-data" in captured.err and "download it" in captured.err
    assert "not tested" in captured.out


def test_two_commands_do_not_run_in_one_folder(flags: Flags) -> None:
    folder = flags.out / "smoke"
    folder.mkdir(parents=True)

    with RunFolder(folder).lock(), pytest.raises(ValueError, match="smoke"):
        main(flags)


def test_words_select_claims_and_what_measures_them() -> None:
    claims, names = select(["table5/mnist", "speedup"])
    assert {claim.place for claim in claims} == {"table5"}
    assert names == ["generation-mnist", "generation-mnist-cuda", "speedup"]

    claims, names = select([])
    assert set(EXPERIMENTS) - set(names) == {"mnist", "mnist-shape"}
    assert left_out(claims, names) == ["mnist"]
    assert left_out(*select(["generation-mnist"])) == []
    assert select(["mnist"])[1] == ["mnist"]
    assert "table1/linear/bits-per-dim" in {claim.name for claim in select(["mnist"])[0]}


def test_every_experiment_runs_after_what_it_stands_beside() -> None:
    order = list(EXPERIMENTS)
    for experiment in EXPERIMENTS.values():
        assert all(order.index(x) < order.index(experiment.name) for x in experiment.beside)
        assert experiment.flags.keys() == experiment.seconds.keys()
        for preset in experiment.flags:
            words = " ".join(experiment.commands(preset))
            assert words.format(out="o", data="d", threads=2, resume="")
