"""What train.py and compare.py of several applications have in common."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.apps.app_scripts import PNG, run
from tests.training.toy import logged

apps = pytest.mark.parametrize("app", ["copy_task", "pixel_generation", "text_generation"])
# Of each application its dataset, and the measures of its evaluations.
EVALUATED = {
    "copy_task": ("copy", ("loss", "accuracy", "sequence_accuracy")),
    "pixel_generation": ("digits", ("bits_per_dim",)),
    "text_generation": ("stdlib", ("loss", "bits_per_byte", "accuracy")),
}


@apps
def test_a_run_learns_and_leaves_numbers_and_a_picture(
    train_smoke: Callable[[str], Path], app: str
) -> None:
    folder = train_smoke(app)
    summary, lines = json.loads((folder / "summary.json").read_text()), logged(folder)
    dataset, measures = EVALUATED[app]
    assert (summary["app"], summary["preset"], summary["dataset"]) == (app, "smoke", dataset)
    # Pixels are measured on the test set, too, when the training has ended.
    prefix = "validation_" if app == "pixel_generation" else ""
    for name in measures:
        assert summary["metrics"][prefix + name] == lines[-1][name]
    losses = [line["loss"] for line in lines if line["split"] == "train"]
    assert losses[-1] < losses[0]
    assert (folder / "curve.png").read_bytes().startswith(PNG)


@apps
def test_a_run_is_not_overwritten_nor_resumed_as_another(
    train_smoke: Callable[[str], Path], app: str
) -> None:
    folder = train_smoke(app)
    flags = ["train", "--preset", "smoke", "--out", folder]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    anew, other = run(app, *flags), run(app, *flags, "--head-dim", 4, "--resume")
    assert (anew.code, other.code) == (2, 2)
    assert "already holds a run" in anew.stderr
    assert "head_dim was 8 and is now 4" in other.stderr
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize(
    ("app", "rate"),
    [
        ("copy_task", "1e20"),
        ("pixel_generation", "1e12"),
        ("text_generation", "1e12 --attention window"),
    ],
)
def test_a_loss_that_is_not_finite_is_reported(app: str, rate: str, tmp_path: Path) -> None:
    flags = "--preset smoke --steps 1 --schedule constant --optimizer adam --warmup-steps 0"
    high = f"--clip-norm None --learning-rate {rate}"
    done = run(app, "train", *flags.split(), *high.split(), "--out", tmp_path / "run")
    assert done.code == 0, done.stderr
    assert None in json.loads((tmp_path / "run" / "summary.json").read_text())["metrics"].values()
    assert "  - " in done.stdout


@pytest.mark.parametrize(
    ("app", "name", "arguments", "named"),
    [
        ("copy_task", "train", "--steps 0", "--steps"),
        ("copy_task", "train", "--held-out 0", "--held-out"),
        ("copy_task", "train", "--max-length 3", "--max-length"),
        ("copy_task", "train", "--lsh-buckets 3", "--lsh-buckets"),
        ("copy_task", "train", "--attention lsh-1 --lsh-chunk 17", "--lsh-chunk"),
        ("pixel_generation", "train", "--dataset mnits", "did you mean 'mnist'"),
        ("pixel_generation", "train", "--dataset mnist", "--download"),
        ("pixel_generation", "train", "--dataset cifar10 --data-dir none", "--data-dir"),
        ("pixel_generation", "train", "--dataset mnist --data-dir .", "train-images-idx3-ubyte"),
        ("pixel_generation", "train", "--test-images 0", "--test-images"),
        ("pixel_generation", "compare", "--seconds nan", "--seconds"),
        ("pixel_generation", "compare", "--only-time", "--only-time"),
        ("pixel_generation", "compare", "--only-time --seconds 1 --steps 2", "--only-time"),
        ("pixel_generation", "compare", "--attentions softmax", "--attentions"),
        ("pixel_generation", "compare", "--attentions linear linear", "--attentions"),
        ("pixel_generation", "compare", "--attentions", "--attentions"),
        ("ctc_speech", "train", "--corpus an4", "--data-dir"),
        ("ctc_speech", "train", "--lexicon x", "--lexicon"),
        ("ctc_speech", "train", "--run-commands", "--run-commands"),
        ("ctc_speech", "train", "--batch-frames 0", "--batch-frames"),
        ("ctc_speech", "train", "--corpus kaldi --data-dir /nowhere", "wav.scp"),
        ("ctc_speech", "train", "--corpus manifest", "--manifest: expected"),
        ("ctc_speech", "train", "--manifest x", "--manifest: expected --corpus manifest"),
        ("ctc_speech", "train", "--corpus manifest --manifest no.jsonl", "no.jsonl: expected"),
        ("ctc_speech", "train", "--units words", "--units: expected phones, characters or bpe:N"),
        ("ctc_speech", "train", "--units bpe:0", "--units: expected"),
        ("ctc_speech", "compare", "--minutes 0", "--minutes"),
        ("ctc_speech", "compare", "--minutes 1e300", "--minutes"),
        ("ctc_speech", "compare", "--seeds -1", "--seeds"),
        ("text_generation", "train", "--length 1", "--length"),
        ("text_generation", "train", "--held-out 0", "--held-out"),
        ("text_generation", "train", "--data absent", "--data"),
        ("text_generation", "train", "--tokenizer words", "--tokenizer"),
        ("text_generation", "train", "--attention window --window-size 0", "--window-size"),
        ("text_generation", "compare", "--seeds 0", "--seeds"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    app: str, name: str, arguments: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(folder)
    done = run(app, name, "--preset", "smoke", *arguments.split(), "--out", folder / "run")
    assert done.code == 2 and named in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert list(folder.iterdir()) == []
