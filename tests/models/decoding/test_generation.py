"""Generation is reproducible, keeps its prefixes, and gives the same by steps and by rerunning."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linattn_models import Head, Lsh, Softmax
from tests.models.tiny import (
    HEADS,
    MAX_LENGTH,
    STEPPING,
    heads,
    ints,
    random_tokens,
    seeded,
    tiny_model,
)


@heads
@pytest.mark.parametrize("method", ["stateful", "rerun"])
def test_the_same_generator_draws_the_same(head: Head, method: str) -> None:
    model = tiny_model("linear", head)
    one, other = (model.generate(4, generator=seeded(1), method=method) for _ in range(2))
    assert torch.equal(one, other)
    assert not torch.equal(one, model.generate(4, generator=seeded(2), method=method))
    extra = () if head.channels == 1 else (3,)
    assert one.shape == (4, MAX_LENGTH, *extra) and one.dtype == torch.int64


@settings(max_examples=40)
@given(
    head=st.sampled_from(HEADS),
    attention=st.sampled_from(STEPPING),
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
)
def test_rerunning_draws_what_the_state_draws(
    head: Head, attention: str, lengths: list[int], temperature: float
) -> None:
    model = tiny_model(attention, head)
    prefix = random_tokens(model, len(lengths), 5)
    stateful, rerun = (
        model.generate(
            prefix=prefix,
            prefix_lengths=torch.tensor(lengths),
            temperature=temperature,
            generator=seeded(),
            method=method,
        )
        for method in ("stateful", "rerun")
    )
    assert torch.equal(stateful, rerun)


def test_what_lies_beyond_a_rows_prefix_is_not_looked_at() -> None:
    model = tiny_model()
    prefix = torch.tensor([[1, 2, -1], [3, 4, 5]])
    tokens = model.generate(prefix=prefix, prefix_lengths=torch.tensor([2, 3]))
    assert tokens.min() >= 0 and tokens[1, 2] == 5


def test_a_whole_prefix_leaves_nothing_to_draw() -> None:
    model = tiny_model()
    prefix = random_tokens(model, 2, MAX_LENGTH)
    assert torch.equal(model.generate(prefix=prefix), prefix)
    assert list(model.stream(prefix=prefix)) == []


def test_streaming_leaves_the_callers_gradient_mode_alone() -> None:
    model = tiny_model()
    stream = model.stream(2)
    token = next(stream)
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert not token.is_inference()
    model.loss(model.generate(2)).backward()  # what was drawn can be trained on


def test_progress_is_shown_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    tiny_model().generate(progress=True)
    shown = capsys.readouterr()
    assert "9/9" in shown.err and shown.out == ""
    tiny_model().generate()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": ints(2, 3)}, "batch"),
        ({"length": 10}, "length"),
        ({"length": 0}, "length"),
        ({"temperature": -1.0}, "temperature"),
        ({"method": "statefull"}, "method"),
        ({"prefix": ints(2, 3, 3)}, "prefix"),
        ({"prefix": torch.tensor([[7]])}, "prefix"),
        ({"prefix": ints(2, 5), "length": 4}, "prefix"),
        ({"prefix": ints(2, 5), "batch": 3}, "prefix"),
        ({"prefix": ints(0, 5)}, "prefix"),
        ({"prefix_lengths": torch.tensor([1])}, "prefix_lengths"),
        ({"prefix": ints(2, 5), "prefix_lengths": torch.tensor([0, 6])}, "prefix_lengths"),
    ],
)
def test_refuses_before_drawing(fields: dict[str, Any], name: str) -> None:
    model = tiny_model()
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        model.generate(**fields)
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        model.stream(**fields)  # at the call, before the first token is asked for


def test_refuses_a_generator_of_another_device() -> None:
    model = tiny_model().to("meta")
    with pytest.raises(ValueError, match="generator"):
        model.generate(generator=seeded())


def test_refuses_a_seed_in_place_of_a_generator() -> None:
    model = tiny_model()
    parameters = torch.zeros(1, model.head.num_parameters)
    for draw in (
        model.generate,
        lambda **x: list(model.stream(**x)),
        lambda **x: model.head.sample(parameters, **x),
    ):
        with pytest.raises(TypeError, match=r"^generator"):
            draw(generator=3)


@settings(max_examples=30)
@given(
    head=st.sampled_from(HEADS),
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    new=st.integers(1, MAX_LENGTH - 5),
    method=st.sampled_from(["stateful", "rerun"]),
    attention=st.sampled_from(STEPPING),
)
def test_every_row_draws_as_many_new_tokens(
    head: Head, lengths: list[int], new: int, method: str, attention: str
) -> None:
    model = tiny_model(attention, head)
    fields: dict[str, Any] = {"temperature": 0.0, "method": method}
    prefix = random_tokens(model, len(lengths), 5)
    ragged = {"prefix": prefix, "prefix_lengths": torch.tensor(lengths), "max_new_tokens": new}
    together = model.generate(num_samples=2, **ragged, **fields)[::2]
    drawn = torch.stack(list(model.stream(**ragged, **fields)), 1)
    assert together.shape[1] == max(lengths) + new
    for row, length in enumerate(lengths):
        alone = model.generate(prefix=prefix[row : row + 1, :length], length=length + new, **fields)
        assert torch.equal(alone[0], together[row, : length + new])
        assert torch.equal(alone[0, length:], drawn[row])
        assert (together[row, length + new :] == -1).all()


@pytest.mark.parametrize("fields", [{"max_new_tokens": 0}, {"max_new_tokens": 9}, {"length": 4}])
def test_refuses_wrong_numbers_of_new_tokens(fields: dict[str, int]) -> None:
    model = tiny_model()
    for draw in (model.generate, model.stream):
        with pytest.raises(ValueError, match=r"^max_new_tokens"):
            draw(prefix=[[1, 2]], **{"max_new_tokens": 1, **fields})


def test_auto_reruns_where_an_attention_cannot_step(attention: str) -> None:
    for kind in (Lsh(rounds=2, buckets=4, chunk=3), Softmax(past_size=2)):
        model = tiny_model(kind)
        auto, rerun = (model.generate(2, generator=seeded(), method=m) for m in ("auto", "rerun"))
        assert torch.equal(auto, rerun) and not model.can_step
        with pytest.raises(ValueError, match="method='rerun'"):
            model.generate(2, method="stateful")
    assert tiny_model(attention).can_step


def test_unknown_arguments_are_refused_at_the_call() -> None:
    unknown: dict[str, Any] = {"temprature": 1.0}
    model = tiny_model()
    for call in (model.generate, model.stream, partial(model.beam_search, num_beams=2)):
        with pytest.raises(TypeError, match="temprature"):
            call(2, **unknown)
