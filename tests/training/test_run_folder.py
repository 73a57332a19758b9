"""Reading a run back."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from linattn_models.training import RunFolder
from linattn_models.training.curves import curves_by_quantity
from tests.training.toy import toy_evaluate, toy_model

pytest.importorskip("matplotlib")


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
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2,"):
        RunFolder(out).metrics()


def test_what_is_missing_is_named(out: Path) -> None:
    folder = RunFolder(out)
    assert not folder.holds_run()
    assert folder.latest_checkpoint() is None
    with pytest.raises(ValueError, match=r"summary\.json is missing"):
        folder.summary()
    with pytest.raises(ValueError, match=r"metrics\.jsonl is missing"):
        folder.metrics()
    with pytest.raises(ValueError, match="holds no checkpoint"):
        folder.load_weights(toy_model())


def test_curves_hold_every_point(unbroken: Path) -> None:
    folder = RunFolder(unbroken)
    curves = curves_by_quantity(folder.metrics())
    assert curves.keys() == {"loss", "learning_rate", "error"}
    assert [step for step, _ in curves["loss"]["train"]] == list(range(1, 13))
    assert [step for step, _ in curves["error"]["eval"]] == [3, 6, 9, 12]


def test_curves_become_a_picture(out: Path, unbroken: Path) -> None:
    out.mkdir()
    lines = (unbroken / "metrics.jsonl").read_text() + json.dumps(
        {"step": 13, "split": "eval", "error": None, "seconds": 1.0}
    )
    (out / "metrics.jsonl").write_text(f"{lines}\n")
    path = RunFolder(out).plot_curves()
    assert path == out / "curve.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_no_curve_without_a_measurement(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out.mkdir()
    (out / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="has logged nothing yet"):
        RunFolder(out).plot_curves()
    (out / "metrics.jsonl").write_text('{"step": 1, "split": "train", "loss": 1.0}\n')
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install linattn-models\[train\]"):
        RunFolder(out).plot_curves()
