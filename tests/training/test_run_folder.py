"""Reading a run back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from linattn_models.training import RunFolder
from linattn_models.training.report import run_panels
from tests.training.toy import toy_evaluate, toy_model


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
    with pytest.raises(ValueError, match=r"summary\.json: expected the record of a run, got no file"):
        folder.summary()
    with pytest.raises(ValueError, match=r"metrics\.jsonl: expected the log of a run, got no file"):
        folder.metrics()
    with pytest.raises(ValueError, match="expected a checkpoint, got none; train there first"):
        folder.load_weights(toy_model())


def test_curves_hold_every_point(unbroken: Path) -> None:
    panels = {panel.title: panel for panel in run_panels(RunFolder(unbroken).metrics())}
    assert list(panels) == ["loss", "error", "learning rate"]
    assert [step for step, _ in panels["loss"].curves["train"]] == list(range(1, 13))
    assert [step for step, _ in panels["error"].curves["eval"]] == [3, 6, 9, 12]
    assert panels["loss"].curves.keys() == {"train"}


def test_curves_become_a_picture(out: Path, unbroken: Path) -> None:
    out.mkdir()
    lines = (unbroken / "metrics.jsonl").read_text() + json.dumps(
        {"step": 13, "split": "eval", "error": None, "seconds": 1.0}
    )
    (out / "metrics.jsonl").write_text(f"{lines}\n")
    path = RunFolder(out).plot_curves()
    assert path == out / "curve.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_no_curve_without_a_measurement(out: Path) -> None:
    out.mkdir()
    (out / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="expected a measurement to draw, got none"):
        RunFolder(out).plot_curves()
