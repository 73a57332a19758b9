"""Generation: reproducible, faithful to its prefixes, and the same by state as by rerunning."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linattn_models import Categorical, Head, MixtureOfLogistics
from tests.models.tiny import ATTENTIONS, MAX_LENGTH, random_tokens, seeded, tiny_model

HEADS: list[Head] = [Categorical(7), MixtureOfLogistics(2, 1, 17), MixtureOfLogistics(2, 3, 8)]
heads = pytest.mark.parametrize("head", HEADS, ids=["categorical", "gray", "color"])


@heads
@pytest.mark.parametrize("method", ["stateful", "rerun"])
def test_the_same_generator_draws_the_same(attention: str, head: Head, method: str) -> None:
    model = tiny_model(attention, head)
    one, other = (model.generate(4, generator=seeded(1), method=method) for _ in range(2))
    assert torch.equal(one, other)
    assert not torch.equal(one, model.generate(4, generator=seeded(2), method=method))
    extra = () if head.channels == 1 else (3,)
    assert one.shape == (4, MAX_LENGTH, *extra) and one.dtype == torch.int64


@heads
@given(
    attention=st.sampled_from(ATTENTIONS),
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


@given(
    attention=st.sampled_from(ATTENTIONS),
    head=st.sampled_from(HEADS),
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4),
)
def test_forced_prefixes_come_out_as_they_went_in(
    attention: str, head: Head, lengths: list[int]
) -> None:
    model = tiny_model(attention, head)
    prefix = random_tokens(model, len(lengths), 5)
    tokens = model.generate(prefix=prefix, prefix_lengths=torch.tensor(lengths), length=7)
    assert tokens.shape[1] == 7
    for row, length in enumerate(lengths):
        assert torch.equal(tokens[row, :length], prefix[row, :length])


def test_a_greedy_row_does_not_depend_on_its_neighbors(attention: str) -> None:
    model = tiny_model(attention)
    prefix = random_tokens(model, 3, 5)
    lengths = [5, 0, 3]
    together = model.generate(prefix=prefix, prefix_lengths=torch.tensor(lengths), temperature=0.0)
    for row, length in enumerate(lengths):
        alone = model.generate(prefix=prefix[row : row + 1, :length], temperature=0.0)
        assert torch.equal(alone[0], together[row])


def test_what_lies_beyond_a_rows_prefix_is_not_looked_at() -> None:
    model = tiny_model()
    prefix = torch.tensor([[1, 2, -1], [3, 4, 5]])
    tokens = model.generate(prefix=prefix, prefix_lengths=torch.tensor([2, 3]))
    assert tokens.min() >= 0 and tokens[1, 2] == 5


@heads
def test_stream_yields_what_generate_returns(attention: str, head: Head) -> None:
    model = tiny_model(attention, head)
    prefix = random_tokens(model, 2, 4)
    fields: dict[str, Any] = {"prefix": prefix, "prefix_lengths": torch.tensor([4, 2])}
    whole = model.generate(**fields, generator=seeded())
    streamed = torch.stack(list(model.stream(**fields, generator=seeded())), 1)
    assert torch.equal(streamed, whole[:, 2:])


def test_samples_follow_the_models_own_probabilities(attention: str) -> None:
    model = tiny_model(attention, Categorical(3))
    count = 20_000
    tokens = model.generate(count, length=2, generator=seeded())
    frequency = torch.bincount(tokens @ torch.tensor([3, 1]), minlength=9) / count
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    nats = model.head.negative_log_likelihood(model(pairs), pairs).sum(1)
    assert (frequency - nats.neg().exp()).abs().max() < 4 * (0.25 / count) ** 0.5


def test_a_whole_prefix_leaves_nothing_to_draw() -> None:
    model = tiny_model()
    prefix = random_tokens(model, 2, MAX_LENGTH)
    assert torch.equal(model.generate(prefix=prefix), prefix)
    assert list(model.stream(prefix=prefix)) == []


def test_one_sequence_by_default_and_the_length_asked_for() -> None:
    model = tiny_model()
    assert model.generate().shape == (1, MAX_LENGTH)
    assert model.generate(2, length=1).shape == (2, 1)


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
    ("fields", "said"),
    [
        ({"batch": 0}, "batch: expected an integer of at least 1, got 0"),
        ({"length": 10}, "length 10 is more than the 9 positions"),
        ({"length": 0}, "length: expected an integer of at least 1"),
        ({"temperature": -1.0}, "temperature: expected a number of at least 0, finite, got -1.0"),
        ({"method": "statefull"}, "did you mean 'stateful'?"),
        ({"prefix": torch.zeros(2, 3, 3, dtype=torch.int64)}, "has (2, 3, 3)"),
        ({"prefix": torch.tensor([[7]])}, "in 0..6 and reach from 7 to 7"),
        ({"prefix": torch.zeros(2, 5, dtype=torch.int64), "length": 4}, "5 tokens long"),
        ({"prefix": torch.zeros(2, 5, dtype=torch.int64), "batch": 3}, "2 rows where 3"),
        ({"prefix": torch.zeros(0, 5, dtype=torch.int64)}, "0 rows where at least 1"),
        ({"prefix_lengths": torch.tensor([1])}, "prefix_lengths came without a prefix"),
        (
            {
                "prefix": torch.zeros(2, 5, dtype=torch.int64),
                "prefix_lengths": torch.tensor([0, 6]),
            },
            "prefix_lengths: expected lengths in 0..5, got 0 to 6",
        ),
    ],
)
def test_refuses_before_drawing(fields: dict[str, Any], said: str) -> None:
    model = tiny_model()
    with pytest.raises(ValueError, match=re.escape(said)):
        model.generate(**fields)
    with pytest.raises(ValueError, match=re.escape(said)):
        model.stream(**fields)  # at the call, before the first token is asked for


def test_refuses_to_draw_under_dropout() -> None:
    model = tiny_model(dropout=0.1).train()
    with pytest.raises(ValueError, match=re.escape("call model.eval() first")):
        model.generate()
    assert model.eval().generate().shape == (1, MAX_LENGTH)


def test_refuses_a_generator_of_another_device() -> None:
    model = tiny_model().to("meta")
    with pytest.raises(ValueError, match="generator is on cpu and the model on meta"):
        model.generate(generator=seeded())
