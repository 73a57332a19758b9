"""States: continued by several tokens at once, concatenated, split, saved and loaded."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from linattn_models import DecodingState, Linear, MixtureOfLogistics
from linattn_models.attention import Attention
from tests.models.tiny import (
    STEPPING,
    ints,
    random_tokens,
    same_rows,
    tiny_model,
    tiny_transformer,
    vectors,
)


def test_cat_and_split_are_inverse(attention: str) -> None:
    model = tiny_model(attention)
    with torch.no_grad():
        _, one = model.prefill(random_tokens(model, 2, 3), torch.tensor([3, 1]), max_length=6)
        _, other = model.prefill(random_tokens(model, 1, 5), max_length=9)
        joined = DecodingState.cat([one, other])
        assert joined.batch == 3 and joined.max_length == 9
        assert torch.equal(joined.cursor.rows(3), torch.tensor([4, 2, 6]))
        for part, whole in zip(joined.split([2, 1]), (one, other), strict=True):
            same_rows(part, whole)
            assert part.parameters is not None and whole.parameters is not None
            assert torch.equal(part.parameters, whole.parameters)
        token = random_tokens(model, 3, 1)[:, 0]
        parameters, _ = model.step(token, joined.clone())
        expected = torch.cat([model.step(token[:2], one)[0], model.step(token[2:], other)[0]])
        torch.testing.assert_close(parameters, expected)
        assert [part.batch for part in joined.split(2)] == [2, 1]


def test_states_of_different_models_are_not_joined(attention: str) -> None:
    _, one = tiny_transformer(attention).prefill(vectors(1, 2), max_length=4)
    _, other = tiny_transformer(attention, num_layers=1).prefill(vectors(1, 2), max_length=4)
    for states in ([], [one, other], [one, one.to(torch.float32)]):
        with pytest.raises(ValueError, match="states"):
            DecodingState.cat(states)


@pytest.mark.parametrize(
    ("call", "error", "name"),
    [
        (lambda s: DecodingState.cat([s, 3]), TypeError, "states"),
        (lambda s: DecodingState.cat(s), TypeError, "states"),
        (lambda s: DecodingState.cat([s, replace(s, parameters=ints(2, 5))]), ValueError, "states"),
        (lambda s: s.split([1, 2]), ValueError, "sizes"),
        (lambda s: s.split([-1, 3]), ValueError, "sizes"),
        (lambda s: s.split(0), ValueError, "sizes"),
        (lambda s: s.split(1.5), TypeError, "sizes"),
        (lambda s: s.index_select([0, 2]), ValueError, "indices"),
        (lambda s: s.index_select([-1]), ValueError, "indices"),
        (lambda s: s.index_select(torch.tensor([[0]])), TypeError, "indices"),
        (lambda s: s.index_select(torch.zeros(1)), TypeError, "indices"),
        (lambda s: s.index_select(["a"]), TypeError, "indices"),
        (lambda s: s.save("."), IsADirectoryError, "."),
    ],
)
def test_a_state_refuses_what_cannot_be_right(
    call: Callable[[Any], object], error: type[Exception], name: str
) -> None:
    model = tiny_model()
    _, state = model.prefill(random_tokens(model, 2, 3))
    with pytest.raises(error, match=f"^{re.escape(name)}: expected"):
        call(state.detach())


@pytest.mark.parametrize("head", [None, 7, MixtureOfLogistics(1, levels=99)], ids=str)
def test_a_saved_state_goes_on_the_same(attention: str, head: Any, tmp_path: Path) -> None:
    """Also of intensities, which are larger than the number of parameters."""
    is_vectors = head is None
    model: Any = tiny_transformer(attention) if is_vectors else tiny_model(attention, head)
    inputs = vectors(3, 5) if is_vectors else random_tokens(model, 3, 5)
    with torch.no_grad():
        _, state = model.prefill(inputs, torch.tensor([5, 0, 2]), max_length=9)
        state.save(tmp_path / "state.safetensors")
        loaded = DecodingState.load(str(tmp_path / "state.safetensors"), device="cpu")
        same_rows(loaded, state)
        same_rows(DecodingState.from_bytes(state.to_bytes()), state)
        assert loaded.max_length == state.max_length and loaded.nbytes == state.nbytes
        assert (loaded.parameters is None) == is_vectors
        first, _ = model.prefill(inputs[:, :2], state=loaded)
        second, _ = model.prefill(inputs[:, :2], state=state)
        assert torch.equal(first, second)
    assert [file.name for file in tmp_path.iterdir()] == ["state.safetensors"]


def write_damaged(path: Path, state: DecodingState, how: str) -> None:
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-9])
        return
    metadata = {"format": "linattn decoding state", "version": "1", "max_length": "9"}
    tensors = {name: x.clone() for name, x in state._tensors().items()}
    first = next(name for name in tensors if name.startswith("layers.0."))
    if how == "foreign":
        metadata = {"format": "pt"}
    elif how == "version":
        metadata["version"] = "9"
    elif how == "missing":
        del tensors[first]
    elif how == "shape":
        tensors[first] = tensors[first][:, :1].clone()
    elif how == "dtype":
        tensors[first] = tensors[first].long()
    elif how == "hole":
        tensors = {name: x for name, x in tensors.items() if not name.startswith("layers.0.")}
    elif how == "extra":
        tensors["weight"] = torch.zeros(2)
    elif how == "position":
        tensors["position"] = torch.tensor([3, 10])
    elif how == "rows":
        tensors["position"] = torch.tensor([3])
    elif how == "no position":
        del tensors["position"]
    elif how == "recent":
        tensors["recent"] = tensors["recent"] + 7
    elif how == "recent rows":
        tensors["recent"] = tensors["recent"][:, 1:].clone()
    elif how == "parameters":
        tensors["parameters"] = tensors["parameters"].to(torch.complex64)
    elif how == "room":
        metadata["max_length"] = "many"
    save_file(tensors, path, metadata)


DAMAGES = ["cut", "foreign", "version", "missing", "shape", "dtype", "hole", "extra", "position"]
DAMAGES += ["rows", "no position", "room", "recent", "recent rows", "parameters"]


@pytest.mark.parametrize(("how", "attention"), list(zip(DAMAGES, cycle(STEPPING))))
def test_damaged_and_foreign_files_are_refused(attention: str, how: str, tmp_path: Path) -> None:
    model = tiny_model(attention)
    _, state = model.prefill(random_tokens(model, 2, 3), max_length=9)
    path = tmp_path / "state"
    state.detach().save(path)
    write_damaged(path, state.detach(), how)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        DecodingState.load(path)
    with pytest.raises(ValueError, match=r"^state: expected"):
        DecodingState.from_bytes(path.read_bytes())


@pytest.mark.parametrize("dtype", ["F6_E2M3", "BF17", ""])
@pytest.mark.parametrize("size", [0, 8, 1 << 62])
def test_bytes_that_are_no_file_are_refused(dtype: str, size: int) -> None:
    tensor = {"dtype": dtype, "shape": [8], "data_offsets": [0, size]}
    header = json.dumps({"position": tensor} if dtype else {}).encode()
    for length in (len(header), 1 << 62, 3):
        content = length.to_bytes(8, "little") + header + bytes(8)
        for part in (content, content[:7], b""):
            with pytest.raises(ValueError, match=r"^state: expected"):
                DecodingState.from_bytes(part)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_device_or_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe, model = tmp_path / "pipe", tiny_model()
    os.mkfifo(pipe)
    _, state = model.prefill(random_tokens(model, 2, 3))
    with pytest.raises(OSError, match=re.escape(f"{pipe}: expected a file to write")):
        state.detach().save(pipe)
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=re.escape(str(tmp_path))):
        DecodingState.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="nothing"):
        DecodingState.load(tmp_path / "nothing")


# The attention of a model, then the attention and the fields of a model whose state it is given.
OTHERS: list[tuple[str, Attention | str, dict[str, Any]]] = [
    ("linear", "softmax", {}),
    ("linear", Linear("taylor"), {}),
    ("linear", "linear", {"num_layers": 1}),
    ("linear", "linear", {"num_heads": 4, "head_dim": 2}),
    ("linear", "linear", {"head": 5}),
    ("softmax", "linear", {}),
    ("softmax", "softmax", {"num_layers": 1}),
    ("softmax", "softmax", {"num_heads": 4, "head_dim": 2}),
    ("windowed", "windowed", {"head": 5}),
    ("windowed", "windowed", {"num_kv_heads": 1}),
    ("one head", "softmax", {}),
]


@pytest.mark.parametrize(("own", "other", "fields"), OTHERS)
def test_a_state_of_another_model_is_refused(
    own: str, other: Attention | str, fields: dict[str, Any]
) -> None:
    model = tiny_model("softmax", num_kv_heads=1) if own == "one head" else tiny_model(own)
    tokens, others = random_tokens(model, 2, 3), tiny_model(other, **fields)
    _, state = others.prefill(random_tokens(others, 2, 3))
    for call in (
        lambda: model.prefill(tokens, state=state),
        lambda: model.step(tokens[:, 0], state),
        lambda: model.generate(state=state, length=1),
        lambda: list(model.stream(state=state, length=1)),
        lambda: model.beam_search(state=state, length=1, num_beams=2),
    ):
        # Without gradients a step writes the state, which would cut heads in silence.
        with torch.no_grad(), pytest.raises((ValueError, TypeError), match="sta"):
            call()


def test_refuses_states_that_do_not_fit(attention: str) -> None:
    model = tiny_model(attention)
    tokens = random_tokens(model, 2, 3)
    _, state = model.prefill(tokens)
    for call, error, said in (
        (lambda: model.prefill(tokens[:1], state=state), ValueError, "1 rows, got 2"),
        (lambda: model.prefill(tokens, state=state.to(torch.float32)), ValueError, "float64"),
        (lambda: model.step(tokens[:, 0], state.to(torch.float32)), ValueError, "state: expected"),
        (lambda: model.step(tokens[:, 0], state.to("meta")), ValueError, "state: expected"),
        (lambda: model.step(tokens[:, 0], (1, 2)), TypeError, "state: expected"),  # type: ignore[arg-type]
        (lambda: model.prefill(tokens, state=(1, 2)), TypeError, "a DecodingState, got a tuple"),  # type: ignore[arg-type]
        (lambda: model.prefill(random_tokens(model, 2, 6), state=state), ValueError, "9 pos"),
        (
            lambda: model.prefill(tokens, torch.tensor([1, 4]), state),
            ValueError,
            "0..3, got 1 to 4",
        ),
        (lambda: model.prefill(tokens, state=state, max_length=3), ValueError, "at least 4, got 3"),
    ):
        with pytest.raises(error, match=re.escape(said)):
            call()
    _, bare = tiny_transformer(attention).prefill(vectors(2, 3), max_length=9)
    with pytest.raises(ValueError, match="pass at least one token for each sequence"):
        model.prefill(tokens[:, :0], state=bare)


def test_more_room_is_made_for_a_state(attention: str) -> None:
    model = tiny_model(attention, positions="sinusoidal")
    tokens = random_tokens(model, 1, 14)
    with torch.no_grad():
        _, state = model.prefill(tokens[:, :4], max_length=5)
        parameters, state = model.prefill(tokens[:, 4:], state=state, max_length=15)
        torch.testing.assert_close(parameters, model(torch.cat([tokens, tokens[:, :1]], 1))[:, -1])
    if attention != "softmax":
        assert state.with_room(None).max_length is None
    else:
        with pytest.raises(ValueError, match="a softmax cache is allocated"):
            state.with_room(None)
