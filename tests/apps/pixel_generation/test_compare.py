"""compare.py: its budgets, its files, how it continues, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from linattn_lab.figures import read_figures
from linattn_lab.plots import points
from linattn_lab.runs import RUNS, read_runs
from linattn_models.training import RunFolder
from tests.apps.app_scripts import PNG, Script, cells, command, kill_when_there

TWO = ("--attentions", "linear", "softmax")
SMOKE = ("--preset", "smoke", "--rounds", "1", *TWO)


@pytest.fixture(scope="module")
def compared(script: Script, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison, published, in which softmax has half the updates: to read only."""
    folder = tmp_path_factory.mktemp("comparison")
    write_times(folder / "out", linear=0.01, softmax=0.02)
    done = script("compare", *SMOKE, "--out", folder / "out", "--publish", folder / "published")
    assert done.code == 0, done.stderr
    assert (folder / "out" / "table.md").read_text() in done.stdout
    return folder


def write_times(folder: Path, **seconds: float) -> None:
    """timings.json as if updates had been measured there."""
    where = {"torch": "2", "device": "cpu", "threads": 1}
    times = {"dataset": "digits", "preset": "smoke", "rounds": 1, "seconds": seconds}
    folder.mkdir(parents=True)
    (folder / "timings.json").write_text(json.dumps({**times, "environment": where}))


def evaluated(run: RunFolder) -> dict[float, float]:
    """Bits per dimension of the validation images, by the updates before."""
    return dict(points(run.metrics(), "bits_per_dim", split="eval"))


def summary(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "summary.json").read_text()))


def test_each_attention_has_its_two_budgets(compared: Path) -> None:
    out = compared / "out"
    rows = cells((out / "table.md").read_text())
    assert list(rows) == ["linear", "softmax"]
    runs = {
        "linear": (out / "updates" / "linear", out / "updates" / "linear"),
        "softmax": (out / "updates" / "softmax", out / "time" / "softmax"),
    }
    assert not (out / "time" / "linear").exists()  # its time is that of its updates
    for name, (by_updates, by_time) in runs.items():
        bits = [f"{summary(run)['metrics']['bits_per_dim']:.3f}" for run in (by_updates, by_time)]
        assert rows[name][0] == bits[0]
        assert rows[name][2] == bits[1]
        assert rows[name][1] == "20"
        assert rows[name][3] == str(summary(by_time)["steps"])
        assert rows[name][5] == f"{summary(by_updates)['parameters']:,}"
    assert (rows["linear"][3], rows["softmax"][3]) == ("20", "10")


def test_what_is_written_and_published(compared: Path) -> None:
    out, published = compared / "out", compared / "published"
    assert (out / "curves.png").read_bytes().startswith(PNG)
    assert "Equal time is 0.200 s" in (out / "table.md").read_text()
    bits = summary(out / "time" / "softmax")["metrics"]["bits_per_dim"]
    assert read_figures(out)["softmax/bits-equal-time"] == bits
    runs = ["updates/linear", "updates/softmax", "time/softmax"]
    assert list(read_runs(published)) == runs
    copies = {"table.md", "curves.png", "figures.json", "timings.json"}
    assert {path.name for path in published.iterdir()} == {*copies, RUNS}
    for name in copies:
        read = json.loads if name.endswith(".json") else bytes  # the copies of JSON are compact
        assert read((published / name).read_bytes()) == read((out / name).read_bytes())


@pytest.mark.slow
def test_equal_updates_are_read_from_the_curves_of_equal_time(
    script: Script, tmp_path: Path
) -> None:
    """40 updates of linear and 20 of softmax: alike until softmax cools down, after 16."""
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    flags = [*SMOKE, "--only-time", "--seconds", 0.4]
    for out in (unbroken, broken):
        write_times(out, linear=0.01, softmax=0.02)
    assert script("compare", *flags, "--out", unbroken).code == 0
    process = command("pixel_generation", "compare", *map(str, flags), "--out", broken)
    kill_when_there(process, broken / "time" / "softmax" / "checkpoints" / "step-4")
    done = script("compare", *flags, "--out", broken)
    assert done.code == 0, done.stderr

    rows = cells((unbroken / "table.md").read_text())
    for name, updates in (("linear", 40), ("softmax", 20)):
        run = RunFolder(unbroken / "time" / name)
        metrics = run.summary()["metrics"]
        assert rows[name][:4] == [
            f"{evaluated(run)[14]:.3f}", "14", f"{metrics['bits_per_dim']:.3f}", str(updates)
        ]  # fmt: skip
    linear, softmax = ({line["step"]: line["learning_rate"] for line in run.metrics()
                        if "learning_rate" in line and line["step"] <= 15}
                       for run in (RunFolder(unbroken / "time" / x) for x in rows))  # fmt: skip
    assert linear == softmax
    assert "Equal updates: read from the curves" in (unbroken / "table.md").read_text()
    assert not (unbroken / "updates").exists()
    assert (broken / "table.md").read_text() == (unbroken / "table.md").read_text()
    read = read_figures(unbroken)
    assert read["linear/updates"] == read["softmax/updates"] == 14
    assert read["linear/bits"] == evaluated(RunFolder(unbroken / "time" / "linear"))[14]
