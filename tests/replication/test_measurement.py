"""Records travel to JSON and back; measurements are stale when their code has changed."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measure.machine import Machine
from replication import collect
from replication import machine as machines
from replication.collect import Stored, best
from replication.experiments import EXPERIMENTS, KERNELS, Experiment
from replication.measurement import Measurement, Spent, read, read_or_set_aside, write
from replication.sources import ROOT


def test_records_come_back(tmp_path: Path, machine: Machine) -> None:
    spent = Spent(2.0, 3e9, 1.0, 1e9)
    records = [
        Measurement("copy", "laptop", machine, {"linear/loss": 0.25}, spent),
        Measurement("lengths", "paper", machine, error="RuntimeError: exit code 1: no"),
    ]
    write(tmp_path / "records.json", records)

    assert read(tmp_path / "records.json") == records


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2}',
        '{"version": 99, "measurements": []}',
        '{"version": 2, "measurements": ["copy"]}',
        "[" * 100_000,
    ],
)
def test_a_damaged_file_or_another_version_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "records.json").write_text(text)

    with pytest.raises(ValueError, match=r"records\.json: expected measurements of version 2, got"):
        read(tmp_path / "records.json")


MACHINE = {field.name for field in dataclasses.fields(Machine)}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"figures": {"a": "1"}}, "figures['a']: expected a float, got '1'"),
        ({"figures": {"a": None}}, "figures['a']: expected a float, got None"),
        ({"figures": {"a": True}}, "figures['a']: expected a float, got True"),
        ({"figures": {"a": 10**400}}, "figures['a']: expected a float, got 1000"),
        ({"figures": [1.0]}, "figures: expected values by name, got [1.0]"),
        ({"figures": None}, "figures: expected values by name, got None"),
        ({"spent": {"seconds": "2", "memory": 1, "least_seconds": 1, "least_memory": 1}},
         "spent.seconds: expected a float, got '2'"),
        ({"spent": 3.0}, "a fault in it"),
        ({"machine": []}, "a fault in it"),
        ({"commit": None}, "machine.commit: expected a str, got None"),
        ({"date": None}, "machine.date: expected a str, got None"),
        ({"threads": 2.5}, "machine.threads: expected a int, got 2.5"),
        ({"experiment": 7}, "experiment: expected a str, got 7"),
        ({"experiment": ["copy"]}, "experiment: expected a str, got ['copy']"),
        ({"preset": "laptops"}, "preset: expected one of smoke, laptop, paper, got 'laptops'"),
        ({"preset": ["laptop"]}, "preset: expected one of smoke, laptop, paper, got ['laptop']"),
        ({"device": "tpu"}, "device: expected one of cpu, cuda, got 'tpu'"),
        ({"mixed": "no"}, "mixed: expected a bool, got 'no'"),
        ({"error": 1}, "error: expected a str, got 1"),
        ({"unknown": 1}, "a fault in it"),
        ({"experiment": "speedup", "figures": {"linear/a/b/seconds": 1.0}}, "'linear/a/b/seconds'"),
        ({"experiment": "speedup", "figures": {"linear/seconds": 1.0}}, "'linear/seconds'"),
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_record_is_one_sentence_that_names_the_file(
    tmp_path: Path, machine: Machine, changes: dict[str, Any], fault: str
) -> None:
    where = {**dataclasses.asdict(machine), **{k: v for k, v in changes.items() if k in MACHINE}}
    record = {"experiment": "copy", "preset": "laptop", "machine": where, "figures": {"a": 1.0}}
    record |= {name: value for name, value in changes.items() if name not in MACHINE}
    file = tmp_path / "records.json"
    file.write_text(json.dumps({"version": 2, "measurements": [record]}))

    with pytest.raises(ValueError, match=r"records\.json: expected measurements of v") as refusal:
        read(file)

    assert fault in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_figures_that_the_report_reads_numbers_in_have_their_names(
    tmp_path: Path, machine: Machine
) -> None:
    record = Measurement("speedup", "laptop", machine, {"linear-compiled/784/64/seconds": 0.5})
    write(tmp_path / "records.json", [record])

    assert read(tmp_path / "records.json") == [record]


def test_a_damaged_file_is_set_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "records.json"
    file.write_text("{")

    assert read_or_set_aside(file) == []
    assert (tmp_path / "records.json.damaged").read_text() == "{"
    assert not file.exists()
    assert "records.json: expected measurements" in capsys.readouterr().err
    assert read_or_set_aside(file) == []


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit of three files, in the place of this one."""
    monkeypatch.setattr(machines, "git", partial(git, tmp_path))
    for name in ("code.py", "other.py", "part/more.cpp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("before\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "--quiet", "-m", "first")
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


SOURCES = ("code.py", "part")


def test_only_what_a_measurement_depends_on_makes_its_commit_dirty(
    checkout: Path, machine: Machine
) -> None:
    (checkout / "other.py").write_text("after\n")
    head = git(checkout, "rev-parse", "--short", "HEAD")

    assert machines.at_commit(machine, [checkout / "code.py"]).commit == head
    assert machines.at_commit(machine, [checkout / "other.py"]).commit == f"{head}-dirty"


def test_a_commit_that_git_cannot_say_is_dirty(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machines, "git", partial(git, tmp_path))  # no checkout

    assert not machines.is_committed(machines.at_commit(machine, [tmp_path]))
    monkeypatch.setenv("PATH", str(tmp_path))  # no git
    assert not machines.is_committed(machines.at_commit(machine, [tmp_path]))


def test_a_measurement_is_stale_unless_its_code_is_this_checkouts(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Experiment, "code", lambda *arguments: "now")
    fresh = Measurement("copy", "laptop", machine, {"a": 1.0}, code="now")
    dirty = dataclasses.replace(machine, commit="abc1234-dirty")

    def why(**changes: Any) -> str | None:
        return collect.why_stale(dataclasses.replace(fresh, **changes))

    assert why() is None
    assert why(code="before") == "the code that it depends on has changed"
    assert why(code="") == "holds no SHA-256 of the code that was measured"
    assert why(machine=dirty) == "measured with uncommitted changes"
    assert why(experiment="gone") == "of an experiment that is no more"
    assert why(mixed=True) == "from runs of several commits"


RUN = {
    "machine": {"date": "2026-11-21", "commit": "abc", "hardware": "x", "software": "x",
                "backends": "cpu", "threads": 2},
    "limits": {"gemm_float32": 1e9, "gemm_bfloat16": None, "copy_bandwidth": 1e9},
}  # fmt: skip
CASE = {"name": "decoding/steps/one-image", "shows": "x"}


@pytest.mark.parametrize(
    ("experiment", "file", "record"),
    [
        ("copy", "linear/summary.json", {}),
        ("copy", "linear/summary.json", []),
        ("copy", "linear/summary.json", {"metrics": {"loss": "low"}}),
        ("copy", "linear/summary.json", {"metrics": {"loss": 1.0}, "environment": {}}),
        ("copy", "linear/summary.json", {"metrics": {"loss": 1.0}, "environment": 3}),
        ("bits-mnist", "updates/linear/summary.json", {"metrics": {"bits_per_dim": None}}),
        ("bits-mnist", "results.json", {"attentions": [1]}),
        ("bits-mnist", "results.json", {"attentions": {"linear": {}}}),
        ("generation-mnist", "benchmark.json", {"speeds": [{}]}),
        ("generation-mnist", "benchmark.json", {"speeds": 1}),
        ("generation-mnist", "benchmark.json", {"speeds": [{"method": "linear", "batch": "1"}]}),
        ("speech", "results.json", {"runs": {"linear": {"metrics": []}}}),
        ("speech-epochs", "benchmark.json", {"epoch": [{"attention": "linear"}]}),
        ("speech-epochs", "benchmark.json",
         {"epoch": [{"attention": "linear", "seconds": [], "lengths": []}]}),
        ("decoding", "results.json", []),
        ("decoding", "results.json", {"runs": [], "cases": [{"run": 0, "case": CASE}]}),
        ("decoding", "results.json", {"runs": [RUN | {"machine": {}}], "cases": []}),
        ("lengths", "results.json", {"runs": [RUN], "cases": [{"run": 0, "case": 1}]}),
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_document_is_one_sentence_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment: str, file: str, record: Any
) -> None:
    monkeypatch.setattr(collect, "RESULTS", tmp_path)
    place = tmp_path / EXPERIMENTS[experiment].published / file
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(record))

    with pytest.raises(ValueError, match=re.escape(f"{place}: expected what ")):
        collect.from_results()


def test_rates_are_those_of_the_latest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "RESULTS", tmp_path)
    for theme, date, rate in (("lengths", "2026-11-21", 1e9), ("decoding", "2026-11-22", 2e9)):
        limits = {**RUN["limits"], "gemm_float32": rate}
        run = {"machine": {**RUN["machine"], "date": date}, "limits": limits}
        case = {"run": 0, "case": {"name": f"{theme}/x", "shows": "x"}, "methods": []}
        (tmp_path / theme).mkdir()
        document = {"runs": [run], "cases": [case]}
        (tmp_path / theme / "results.json").write_text(json.dumps(document))

    assert collect.limits().gemm_float32 == 2e9


def test_nothing_that_docs_results_holds_is_fresh() -> None:
    collected = collect.from_results()

    assert collected
    assert [each for each in collected if collect.why_stale(each) is None] == []
    assert all(each.mixed == ("," in each.machine.commit) for each in collected)
    mixed = {each.experiment for each in collected if each.mixed}
    assert {"copy", "bits-mnist"} <= mixed


def test_what_is_said_to_be_published_is_there() -> None:
    published = {x.name: x for x in EXPERIMENTS.values() if x.published}
    files = {
        name: list((collect.RESULTS / x.published).glob(x.record or "results.json"))
        for name, x in published.items()
    }

    assert [name for name, matching in files.items() if not matching] == []
    assert {each.experiment for each in collect.from_results()} == published.keys()


def test_verdicts_rest_on_fresh_and_sound_measurements(machine: Machine) -> None:
    def of(stale: str | None = None, **others: Any) -> Stored:
        measurement = Measurement("copy", "laptop", machine)
        return Stored(dataclasses.replace(measurement, **others), stale)

    fresh, stale, failed, smoke = of(), of("changed"), of(error="no"), of(preset="smoke")

    assert best([stale, fresh, failed, smoke]) == {"copy": fresh}
    assert best([failed, stale, smoke]) == {"copy": stale}
    assert best([smoke]) == {}


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda experiment: experiment.name)
def test_sources_exist_and_hold_the_command_and_the_operator(experiment: Experiment) -> None:
    sources = experiment.sources("cpu")
    names = {source.relative_to(ROOT).as_posix() for source in sources}

    assert all(source.exists() for source in sources)
    assert "packages/linattn-core/src/linattn_core/functional.py" in names
    kernels = "/entry.cpp" if experiment.kernels == "attention" else "linattn-cpu/native"
    assert any(name.endswith(kernels) for name in names)
    script = [word for word in experiment.command.split() if word.endswith(".py")]
    assert names >= set(script)
    assert not any(name.startswith(tuple(experiment.untimed)) for name in names)


def test_kernels_of_a_gpu_make_no_measurement_of_a_cpu_stale() -> None:
    def of_gpus(device: str) -> list[Path]:
        sources = [x for each in EXPERIMENTS.values() for x in each.sources(device)]
        return [x for x in sources if "cuda" in x.relative_to(ROOT).as_posix()]

    assert of_gpus("cpu") == []
    assert ROOT / "kernels-cuda" / "src" in of_gpus("cuda")
    assert all(source.exists() for source in of_gpus("cuda"))


@pytest.mark.parametrize(
    ("kernels", "sources", "includes"),
    [(("steps", "cuda"), "kernels-cuda", ("kernels-cuda/include", "kernels-cuda")),
     (("attention", "cpu"), "packages/linattn-cpu/native", ("packages/linattn-cpu/native",))],
)  # fmt: skip
def test_kernels_depend_on_all_that_they_include(
    kernels: tuple[str, str], sources: str, includes: tuple[str, ...]
) -> None:
    found = {place: list(ROOT.glob(place)) for place in KERNELS[kernels]}
    places = [place for each in found.values() for place in each]
    files = [x for place in places for x in ([place] if place.is_file() else place.rglob("*.*"))]
    own = [file for file in files if file.is_relative_to(ROOT / sources)]
    names = re.findall(r'#include "(.*)"', "\n".join(x.read_text(encoding="utf-8") for x in own))
    included = {ROOT / place / name for place in includes for name in names}
    # The build of all kernels includes the compiled decoder, too; and the emulation is for tests.
    others = {"decoder", "emulation"}
    included = {x for x in included if x.exists() and not others & set(x.relative_to(ROOT).parts)}

    assert all(found.values())
    assert included
    assert included <= set(files)
