"""Runs: recorded, resumed, kept apart; a failure costs only itself."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.measure.machine import Limits, Machine
from linattn_models.training import RunFolder
from replication import paper, runner
from replication.experiments import EXPERIMENTS, Experiment, PresetName
from replication.measurement import Measurement, Spent, read, write
from replication.read import READERS
from replication.runner import Runs, lacking, record_file
from tests.replication.conftest import WRITES


@pytest.fixture
def runs(tmp_path: Path, machine: Machine, limits: Limits) -> Runs:
    return Runs(tmp_path / "runs", "smoke", machine, lambda device: limits)


@pytest.fixture
def registered(
    monkeypatch: pytest.MonkeyPatch, quick: Experiment, failing: Experiment, limits: Limits
) -> None:
    """The command knows these two experiments alone."""
    monkeypatch.setattr(paper, "EXPERIMENTS", {"failing": failing, "equations": quick})
    monkeypatch.setattr(paper, "isolated_limits", lambda settings: limits)


def test_a_run_leaves_its_figures_its_cost_and_its_machine(runs: Runs, quick: Experiment) -> None:
    passed: list[float] = []
    folder, before = runs.of(quick)

    record = runs.run(quick, passed.append)

    assert before is None
    assert record.sound
    assert record.figures == {"positive": 2.0}
    assert record.spent is not None
    assert record.spent.least_seconds == 1.0
    assert record.spent.seconds >= sum(passed) > 0
    assert record.spent.memory > 0
    assert record.machine.hardware == runs.machine.hardware
    assert [each.figures for each in read(record_file(folder, quick))] == [record.figures]


def test_a_run_on_a_gpu_should_take_what_the_gpus_rates_say(
    runs: Runs, quick: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {"cpu": Limits(1e9, None, 1e9), "cuda": Limits(1e12, 1e13, 1e12)}
    runs = dataclasses.replace(runs, limits=rates.__getitem__)
    monkeypatch.setattr(runner.torch.cuda, "is_available", lambda: True)

    assert runs.least_seconds(quick) == 1e-3
    assert runs.least_seconds(dataclasses.replace(quick, on_cpu=("smoke",))) == 1.0


@pytest.mark.usefixtures("registered")
def test_rates_are_measured_once_for_each_device_that_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    measured: list[str] = []
    monkeypatch.setattr(paper, "isolated_limits", lambda x: measured.append(x.device) or limits)
    flags = paper.Flags(("section3.2/positive",), preset="smoke", out=tmp_path / "runs")

    paper.main(flags)
    assert measured == ["cpu"]
    paper.main(flags)
    assert measured == ["cpu"]  # nothing was left to run


@pytest.mark.usefixtures("registered")
def test_two_commands_do_not_run_in_one_folder(tmp_path: Path) -> None:
    flags = paper.Flags(("section3.2/positive",), preset="smoke", out=tmp_path)

    with (
        RunFolder(tmp_path).locked(),
        pytest.raises(ValueError, match="expected a run that no other process writes"),
    ):
        paper.main(flags)


def test_a_file_in_the_place_of_the_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(FileExistsError):
        paper.main(paper.Flags(("section3.2",), preset="smoke", out=tmp_path / "file"))


def test_what_has_ended_is_not_run_again(runs: Runs, quick: Experiment) -> None:
    folder, _ = runs.of(quick)
    runs.run(quick, lambda seconds: None)

    again, record = runs.of(quick)

    assert again == folder
    assert record is not None
    assert record.sound


def test_what_has_ended_is_read_again(
    runs: Runs, quick: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runs.read_again(quick) is None
    folder, _ = runs.of(quick)
    runs.run(quick, lambda seconds: None)

    monkeypatch.setitem(READERS, "flat", lambda folder: {"positive": 3.0})
    record = runs.read_again(quick)

    assert record is not None
    assert record.figures == {"positive": 3.0}
    assert read(record_file(folder, quick)) == [record]
    monkeypatch.setitem(READERS, "flat", lambda folder: {})
    with pytest.raises(ValueError, match=r"expected figures, got none; .* give --again"):
        runs.read_again(quick)


def test_an_interrupted_run_continues_in_its_folder(runs: Runs, quick: Experiment) -> None:
    folder, _ = runs.of(quick)
    record = runs.run(quick, lambda seconds: None)
    write(record_file(folder, quick), [dataclasses.replace(record, figures={}, ended=False)])

    again, begun = runs.of(quick)

    assert again == folder
    assert begun is not None
    assert not begun.sound
    runs.run(quick, lambda seconds: None)
    assert (folder / "runs.txt").read_text() == "xx"


SAVES = """
import pathlib, sys, time
pathlib.Path(sys.argv[-1], "started").touch()
try:
    time.sleep(600)
except KeyboardInterrupt:
    pathlib.Path(sys.argv[-1], "saved").touch()
"""
GOES_ON = """
import os, pathlib, signal, sys, time
for name in sys.argv[1].split("+"):
    signal.signal(signal.Signals[name], signal.SIG_IGN)
pathlib.Path(sys.argv[-1], "started").write_text(str(os.getpid()))
time.sleep(600)
"""


STARTS = """
import pathlib, subprocess, sys, time

child = subprocess.Popen([sys.executable, "-c", "import signal, time; "
    "signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); time.sleep(600)"],
    stdout=subprocess.PIPE)
child.stdout.readline()
pathlib.Path(sys.argv[-1], "started").write_text(str(child.pid))
time.sleep(600)
"""


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["asked", "ignored"])
def sigint(request: pytest.FixtureRequest) -> Iterator[None]:
    """SIGINT as an interactive shell leaves it, and as `&` in a script does.

    SIGHUP as without nohup, under which these tests may run themselves.
    """
    before = signal.signal(signal.SIGINT, request.param)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    assert signal.getsignal(signal.SIGINT) is request.param
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGHUP, hangup)


def slow(quick: Experiment, tmp_path: Path, source: str) -> Experiment:
    """An experiment whose command runs this source."""
    script = tmp_path / "slow.py"
    script.write_text(source)
    return dataclasses.replace(quick, command=str(script))


def signals_once_started(folder: Path, number: signal.Signals) -> Callable[[float], None]:
    """A tick that sends this process the signal when the command has begun."""

    def tick(seconds: float) -> None:
        if (folder / "started").exists():
            os.kill(os.getpid(), number)

    return tick


@pytest.mark.usefixtures("sigint")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_ends_the_command_and_leaves_a_record_of_it(
    runs: Runs, quick: Experiment, tmp_path: Path, number: signal.Signals
) -> None:
    saves = slow(quick, tmp_path, SAVES)
    folder, _ = runs.of(saves)

    with pytest.raises(KeyboardInterrupt):
        runs.run(saves, signals_once_started(folder, number))

    assert (folder / "saved").exists()
    _, record = runs.of(saves)
    assert record is not None
    assert not record.ended
    assert record.spent is not None
    assert record.spent.seconds > 0


@pytest.mark.parametrize("ignored", ["SIGINT", "SIGINT+SIGTERM"])
def test_a_command_that_goes_on_after_an_interruption_is_ended(
    runs: Runs, quick: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignored: str
) -> None:
    soon = [(number, 0.5) for number, _ in runner.SIGNALS[:-1]]
    monkeypatch.setattr(runner, "SIGNALS", (*soon, runner.SIGNALS[-1]))
    goes_on = slow(quick, tmp_path, GOES_ON)
    goes_on = dataclasses.replace(goes_on, command=f"{goes_on.command} {ignored}")
    folder, _ = runs.of(goes_on)

    with pytest.raises(KeyboardInterrupt):
        runs.run(goes_on, signals_once_started(folder, signal.SIGINT))

    assert not psutil.pid_exists(int((folder / "started").read_text()))


def test_what_a_command_has_started_ends_with_it(
    runs: Runs, quick: Experiment, tmp_path: Path
) -> None:
    starts = slow(quick, tmp_path, STARTS)
    folder, _ = runs.of(starts)

    with pytest.raises(KeyboardInterrupt):
        runs.run(starts, signals_once_started(folder, signal.SIGINT))

    child = int((folder / "started").read_text())
    wait_until(lambda: has_ended(child))


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def has_ended(pid: int) -> bool:
    """Whether it has, though nobody may have waited for it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_what_was_spent_before_an_interruption_counts(runs: Runs, quick: Experiment) -> None:
    folder, _ = runs.of(quick)
    record = runs.run(quick, lambda seconds: None)
    begun = dataclasses.replace(record, figures={}, ended=False, spent=Spent(1e3, 9e12, 0.0, 0.0))
    write(record_file(folder, quick), [begun])

    record = runs.run(quick, lambda seconds: None)

    assert record.spent is not None
    assert 1e3 < record.spent.seconds < 2e3
    assert record.spent.memory == 9e12


def test_a_damaged_record_is_set_aside_and_the_run_goes_on(
    runs: Runs, quick: Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = runs.of(quick)
    folder.mkdir(parents=True)
    record_file(folder, quick).write_text('{"version": 2, "measurements": [{"figures": 1}]}')

    assert runs.run(quick, lambda seconds: None).sound
    assert "quick-record.json.damaged" in capsys.readouterr().err


def test_whatever_a_reader_raises_is_recorded(
    runs: Runs, quick: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reader(folder: Path) -> dict[str, float]:
        raise ZeroDivisionError("of a damaged file")

    monkeypatch.setitem(READERS, "broken", reader)
    record = runs.run(dataclasses.replace(quick, read="broken"), lambda seconds: None)

    assert record.error == "ZeroDivisionError: of a damaged file"
    assert record.ended


def test_experiments_of_the_same_commands_run_once(
    runs: Runs, quick: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "quick", quick)
    other = dataclasses.replace(quick, name="other", same={"smoke": "quick"})

    first, second = (runs.run(each, lambda seconds: None) for each in (quick, other))

    folder, record = runs.of(other)
    assert folder == runs.of(quick)[0]
    assert (folder / "runs.txt").read_text() == "x"
    assert record is not None
    assert record.figures == second.figures
    assert (second.experiment, second.figures) == ("other", first.figures)
    runs.again(other)
    assert runs.run(other, lambda seconds: None).sound  # alone it runs the commands itself


def test_changed_code_has_a_folder_of_its_own(runs: Runs, quick: Experiment) -> None:
    folder, _ = runs.of(quick)
    before = runs.run(quick, lambda seconds: None)
    Path(quick.command).write_text(WRITES + "changed = True\n")

    _, record = runs.of(quick)

    assert len(before.code) == 64
    assert record is None
    assert runs.folder_of(before.code, quick.name) == folder  # where it still is


def test_other_flags_are_other_code(runs: Runs, quick: Experiment) -> None:
    runs.run(quick, lambda seconds: None)

    assert runs.of(dataclasses.replace(quick, smoke="--steps 2"))[1] is None
    assert runs.of(dataclasses.replace(quick, laptop="--steps 2"))[1] is not None


def test_code_that_changes_during_its_run_is_an_error(runs: Runs, quick: Experiment) -> None:
    changes = f"pathlib.Path({quick.command!r}).write_text('print()')\n"
    Path(quick.command).write_text(WRITES + changes)

    record = runs.run(quick, lambda seconds: None)

    assert record.error is not None
    assert "the code: expected the same at the end, got another" in record.error


def test_other_machines_versions_and_backends_have_folders_of_their_own(
    runs: Runs, quick: Experiment
) -> None:
    other = dataclasses.replace(runs.machine, hardware="another CPU, 2 cores")
    newer = dataclasses.replace(runs.machine, software="torch 3.0.0")
    slower = dataclasses.replace(runs.machine, backends="reference")
    folders = {
        dataclasses.replace(runs, machine=each).of(quick)[0]
        for each in (runs.machine, other, newer, slower)
    }

    assert len(folders) == 4


def test_a_failure_is_recorded_with_the_last_words(runs: Runs, failing: Experiment) -> None:
    record = runs.run(failing, lambda seconds: None)

    assert record.error == "RuntimeError: exit code 1: it is broken"
    assert not record.sound


def test_a_command_that_leaves_nothing_to_read_fails(runs: Runs, quick: Experiment) -> None:
    nothing = dataclasses.replace(quick, read="spoken")

    record = runs.run(nothing, lambda seconds: None)

    assert record.error is not None
    assert "expected figures, got none" in record.error


@pytest.mark.usefixtures("registered")
def test_the_others_go_on_and_the_exit_code_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = [c for c in paper.chosen([]) if c.name == "section3.2/positive"]
    broken = dataclasses.replace(claims[0], name="x/broken", experiments=("failing",))
    monkeypatch.setattr(paper, "chosen", lambda names, others: [broken, *claims])

    with pytest.raises(SystemExit) as ended:
        paper.main(paper.Flags(preset="smoke", out=tmp_path / "runs"))

    out, err = capsys.readouterr()
    assert ended.value.code == 1
    assert "it is broken" in err
    rows = {line.split("|")[1].strip(): line for line in out.splitlines() if "|" in line}
    assert rows["section3.2/positive"].split("|")[-2].strip() == "-"  # a smoke run
    assert "not run" in rows["x/broken"]


@pytest.mark.usefixtures("registered")
def test_what_fails_before_a_run_costs_only_itself(
    monkeypatch: pytest.MonkeyPatch, runs: Runs
) -> None:
    def broken(experiment: Experiment, preset: PresetName) -> str | None:
        if experiment.name == "failing":
            raise SyntaxError("half a file")
        return None

    monkeypatch.setattr(paper, "lacking", broken)

    records = paper.run_all(runs, ["failing", "equations"])

    errors = {name: getattr(record, "error", "") for name, record in records.items()}
    assert errors == {"failing": "SyntaxError: half a file", "equations": None}


@pytest.mark.usefixtures("registered")
def test_the_same_command_does_what_is_left(tmp_path: Path) -> None:
    flags = paper.Flags(("section3.2/positive",), preset="smoke", out=tmp_path / "runs")

    paper.main(flags)
    paper.main(flags)
    (counted,) = (tmp_path / "runs").rglob("runs.txt")
    assert counted.read_text() == "x"

    paper.main(dataclasses.replace(flags, again=True))
    assert counted.read_text() == "x"  # the folder was emptied
    assert counted.parent.with_name("quick-record.json").exists()


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("preset", "dirty", "verdict"),
    [("laptop", False, "confirmed"), ("laptop", True, "-"), ("smoke", False, "-")],
)
def test_smoke_and_uncommitted_code_get_no_verdict(
    machine: Machine, preset: PresetName, dirty: bool, verdict: str
) -> None:
    claims = [c for c in paper.chosen([]) if c.name == "section3.2/positive"]
    there = dataclasses.replace(machine, commit=machine.commit + "-dirty" * dirty)
    record = Measurement("equations", preset, there, {"positive": 2.0})

    table = paper.verdicts(claims, {"equations": record})

    assert table.splitlines()[-1].split("|")[-2].strip() == verdict


def test_an_experiment_can_be_chosen_by_its_name() -> None:
    claims, names = paper.selected(["speedup"])
    assert (claims, names) == ([], ["speedup"])

    claims, names = paper.selected(["decoding", "figure2/softmax"])
    assert [claim.name for claim in claims] == ["figure2/softmax", "section3.4/constant-step"]
    assert names == ["decoding", "copy"]

    assert paper.selected([]) == (paper.chosen([]), list(EXPERIMENTS))
    for word, near in (("tabel5", "table5"), ("spedup", "speedup"), ("lenghts", "lengths")):
        with pytest.raises(ValueError, match=f"did you mean '{near}'"):
            paper.selected(["speedup", word])


def test_what_an_experiment_stands_beside_runs_too() -> None:
    _, names = paper.selected(["generation-mnist-cuda"])

    assert names.index("generation-mnist") < names.index("generation-mnist-cuda")
    assert {"generation-cifar10", "generation-cifar10-cuda"} <= set(names)


def test_smoke_figures_are_not_published() -> None:
    with pytest.raises(ValueError, match="a smoke run's figures mean nothing"):
        paper.main(paper.Flags(("section3.2",), preset="smoke", publish=True))


def test_figures_are_published_by_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    monkeypatch.setattr(paper, "FOLDER", tmp_path)
    monkeypatch.setattr(paper, "ROOT", tmp_path)
    other = dataclasses.replace(machine, hardware="another CPU")
    lengths = Measurement("lengths", "laptop", machine, {"b": 2.0})
    for records in (
        {"copy": Measurement("copy", "laptop", machine, {"a": 1.0})},
        {"copy": Measurement("copy", "laptop", other, {"a": 9.0})},
        {"lengths": lengths, "speech": "not run: needs the data set speech/an4"},
        {"copy": Measurement("copy", "laptop", machine, error="no")},
    ):
        paper.publish(records, lambda record: tmp_path / "none")

    kept = [{x.experiment: x.figures for x in read(file)} for file in tmp_path.glob("*.json")]
    assert {"copy": {"a": 9.0}} in kept
    assert {"copy": {"a": 1.0}, "lengths": {"b": 2.0}} in kept


def test_a_measurement_stays_that_is_worth_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    monkeypatch.setattr(paper, "FOLDER", tmp_path)
    monkeypatch.setattr(paper, "ROOT", tmp_path)
    dirty = dataclasses.replace(machine, commit=f"{machine.commit}-dirty")
    laptop = Measurement("copy", "laptop", machine, {"a": 1.0})
    large = Measurement("copy", "paper", machine, {"a": 2.0})
    uncommitted = Measurement("copy", "paper", dirty, {"a": 3.0})
    failed = Measurement("copy", "paper", machine, error="no")
    stays = {0: 0, 1: 1, 2: 1, 3: 1, 4: 4}

    for number, record in enumerate([laptop, large, uncommitted, failed, large]):
        paper.publish({"copy": record}, lambda record: tmp_path / "none")
        (kept,) = read(next(tmp_path.glob("*.json")))
        assert kept == [laptop, large, uncommitted, failed, large][stays[number]]


def test_what_a_machine_lacks_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LINATTN_DATA", str(tmp_path))
    reason = lacking(EXPERIMENTS["bits-mnist"], "laptop")

    assert reason is not None
    assert reason.startswith("needs the data set mnist: ")
    assert lacking(EXPERIMENTS["bits-mnist"], "smoke") is None
    (tmp_path / "mnist").mkdir()
    assert lacking(EXPERIMENTS["bits-mnist"], "laptop") is None
