"""liblinattn gives the results of Python for models, prompts and settings of any kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from linattn_models import DecodingState, compile_decoder, load_decoder
from tests.library.configurations import Case, random_case
from tests.library.linattn_library import Model


@pytest.mark.parametrize(
    "numbers",
    [range(32), pytest.param(range(32, 316), marks=pytest.mark.slow)],
    ids=["some", "300"],
)
def test_results_are_those_of_python(tmp_path: Path, numbers: range) -> None:
    for case in map(random_case, numbers):
        file = case.export(tmp_path)
        check = check_tokens if case.settings else check_vectors
        check(case, file, Model(file), tmp_path / "state")


def check_vectors(case: Case, file: Path, model: Model, saved: Path) -> None:
    decoder = load_decoder(file)
    outputs, own = decoder.prefill(case.prefix)
    check_exported(case, outputs)
    state = model.new_state(len(case.prefix))
    assert torch.equal(model.read_vectors(state, case.prefix), outputs), case

    saved.write_bytes(model.save_state(state))
    theirs, (vectors,) = DecodingState.load(saved), case.prefix[:, :1].unbind(1)
    after, _ = decoder.step(vectors, theirs)
    own.save(saved)
    back = model.load_state(saved.read_bytes())
    assert torch.equal(model.read_vectors(back, case.prefix[:, :1])[:, 0], after), case


def check_tokens(case: Case, file: Path, model: Model, saved: Path) -> None:
    rows, length = case.prefix.shape[:2]

    def draw(state: int, prompt: list[int]) -> list[list[int]]:
        return model.generate(
            state, prompt, case.count, rows=rows, channels=case.model.head.channels,
            stop=case.stops, **case.settings,
        )  # fmt: skip

    assert draw(model.new_state(rows), case.prompt) == case.draw(file), case

    parameters, own = load_decoder(file).prefill(case.prefix)
    check_exported(case, parameters)
    state = model.new_state(rows)
    model.read(state, case.prompt, length)
    assert model.parameters(state, parameters.numel()) == parameters.flatten().tolist(), case

    saved.write_bytes(model.save_state(state))
    theirs, more = DecodingState.load(saved), case.prefix[:, -2:]
    assert theirs.fingerprint == own.fingerprint
    wanted = case.draw(file, state=theirs, prefix=more)
    assert case.draw(file, state=own, prefix=more) == wanted, case
    own.save(saved)
    back = model.load_state(saved.read_bytes())
    assert draw(back, more.flatten().tolist()) == wanted, case


def check_exported(case: Case, outputs: Tensor) -> None:
    """Compares with the model that was exported."""
    wanted, _ = compile_decoder(case.model, case.weights).prefill(case.prefix)
    assert torch.equal(outputs, wanted), case
