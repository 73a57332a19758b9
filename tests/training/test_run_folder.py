"""Run folders are read as they were written; a lock keeps a second process out."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

import pytest
import torch

import linattn_models
from linattn_models import ByteTokenizer
from linattn_models.training import RunFolder, TensorData, write_json
from tests.models.tiny import tiny_model
from tests.training.toy import toy_evaluate, toy_model, toy_run

LINES = [{"step": step, "split": "train", "seconds": 0.5, "loss": 0.1} for step in (1, 2)]
TEXT = "".join(json.dumps(line) + "\n" for line in LINES)


def test_an_edited_configuration_is_refused_before_a_model_is_built(unbroken: Path) -> None:
    run = RunFolder(unbroken)
    model, step = run.load_model(lambda config: toy_model() if config == {"width": 8} else None)
    assert step == 12
    with torch.no_grad():
        assert toy_evaluate(model.eval()) == run.summary()["metrics"]
    content = run.config_file.read_bytes()
    try:
        write_json(run.config_file, {**run.config(), "model": {"width": 10**6}})
        with pytest.raises(ValueError, match=r"config\.json"):
            run.load_model(lambda config: pytest.fail("built"))
    finally:
        run.config_file.write_bytes(content)


def test_a_run_is_loaded_as_a_saved_model(tmp_path: Path, unbroken: Path) -> None:
    model = tiny_model(head=256).float()
    model.tokenizer = ByteTokenizer()
    toy_run(
        tmp_path / "run",
        model=model,
        data=TensorData(torch.randint(256, (4, 5))),
        loss=lambda model, tokens: model.loss(tokens),
        evaluate=None,
        checkpoint_every=1,
        steps=11,
    )
    run = RunFolder(tmp_path / "run")
    for folder in (run.path, run.checkpoint_folder(11)):
        loaded = linattn_models.load(folder)
        assert not loaded.training
        assert (loaded.tokenizer, loaded.to_dict()) == (model.tokenizer, model.to_dict())
        assert all(map(torch.equal, loaded.parameters(), model.parameters()))
    assert linattn_models.read_config(run.path)["model"] == "AutoregressiveTransformer"
    run.checkpoints_folder.rename(run.path / "elsewhere")
    run.checkpoints_folder.mkdir()
    with pytest.raises(ValueError, match="checkpoint"):
        linattn_models.load(run.path)
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        linattn_models.load(unbroken)  # of a module that is not of this package


@pytest.mark.parametrize(
    "line",
    [
        *('{"step": ', "[1]", "\x00", '{"step": 3}'),
        '{"step": 3, "split": "train", "seconds": 0.5, "loss": "low"}',
    ],
)
def test_a_broken_line_is_named(out: Path, line: str) -> None:
    out.mkdir()
    (out / "metrics.jsonl").write_text(f"{TEXT}{line}\n{TEXT}")
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 3") as refusal:
        RunFolder(out).metrics()
    assert "\n" not in str(refusal.value)
    (out / "metrics.jsonl").write_text(TEXT + line)  # that is still being written
    assert RunFolder(out).metrics() == LINES


def test_json_without_a_meaning_is_not_written(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": (1, 2.5)})
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", float("nan"))
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": [1, 2.5]}


@pytest.mark.parametrize("name", ["config", "summary"])
@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", '{"model": 3, "steps": "7"}', "\xff"),
        '{"model": {}, "training": {}, "steps": 3, "metrics": {"error": 0.5}}',
    ],
)
def test_a_file_that_is_not_of_a_run_is_named(out: Path, name: str, content: str) -> None:
    out.mkdir()
    (out / f"{name}.json").write_text(content)
    with pytest.raises(ValueError, match=rf"{name}\.json") as refusal:
        getattr(RunFolder(out), name)()
    assert "\n" not in str(refusal.value)


def test_what_is_missing_is_named(out: Path) -> None:
    folder = RunFolder(out)
    assert not folder.holds_run()
    assert folder.latest_checkpoint() is None
    with pytest.raises(ValueError, match=r"summary\.json"):
        folder.summary()
    with pytest.raises(ValueError, match=r"metrics\.jsonl"):
        folder.metrics()
    with pytest.raises(ValueError, match="checkpoint"):
        folder.load_model(lambda _: toy_model())


def test_a_locked_folder_says_who_holds_it(out: Path) -> None:
    folder = RunFolder(out)
    with folder.lock():
        with pytest.raises(ValueError, match="expected a run that no other process") as refusal:
            toy_run(out)
        assert f"got process {os.getpid()} on {platform.node()} since 2" in str(refusal.value)
        with (
            pytest.raises(ValueError, match="no other process writes"),
            RunFolder(out).lock(),
        ):
            pass
    toy_run(out, steps=1)
