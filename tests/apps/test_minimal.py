"""apps/minimal.py computes linear attention, and its two forms are one."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from linattn_core import linear_attention
from tests.apps.app_scripts import APPS, run

FILE = APPS / "minimal.py"


@pytest.fixture(scope="module")
def minimal() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(FILE)))


@pytest.mark.parametrize(("length", "chunk"), [(1, 4), (8, 4), (21, 4), (21, 32)])
def test_it_is_linear_attention_as_a_transformer_and_as_an_rnn(
    minimal: SimpleNamespace, length: int, chunk: int
) -> None:
    query, key, value = torch.randn(3, 2, 3, length, 5, dtype=torch.float64)
    whole = minimal.attend(query, key, value, chunk)
    torch.testing.assert_close(whole, linear_attention(query, key, value, is_causal=True))
    state = torch.zeros(2, 3, 5, 6, dtype=torch.float64)
    for position in range(length):
        one = (x[:, :, position : position + 1] for x in (query, key, value))
        out, state = minimal.attend_step(*one, state)
        torch.testing.assert_close(out, whole[:, :, position : position + 1])


def test_the_model_predicts_the_same_as_an_rnn(minimal: SimpleNamespace) -> None:
    model = minimal.Model(7, dim=8, heads=2, layers=2).double()
    tokens = torch.randint(7, (1, 9))
    states = list(torch.zeros(model.state_shape, dtype=torch.float64))
    steps = [model(tokens[:, i : i + 1], i, states) for i in range(9)]
    torch.testing.assert_close(torch.cat(steps, dim=1), model(tokens))


def test_the_loss_falls(minimal: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    text = torch.arange(300) % 5
    minimal.train(minimal.Model(5, dim=16, heads=2, layers=1), text, 50, batch=4)
    first, last = (float(line.split()[3]) for line in capsys.readouterr().out.splitlines())
    assert last < first / 2


def test_it_needs_torch_alone_and_writes_the_text_s_characters(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("αβ\n" * 9, encoding="utf-8")
    blocked = "import runpy, sys; sys.modules['linattn_core'] = None; sys.argv = sys.argv[1:]; "
    code = blocked + "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-X", "utf8", "-c", code, str(FILE), str(text), "--steps", "1"]
    out = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout
    _, *samples = out.split("-" * 40 + "\n")
    assert len(samples) == 3 and all(set(sample) <= set("αβ\n") for sample in samples)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)
    ended = run("", "minimal", file)
    assert ended.code == 2 and "FILE: expected" in ended.stderr
