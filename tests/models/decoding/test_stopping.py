"""Stop tokens, several samples of a prompt, and prompts as lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linattn_models import MixtureOfLogistics
from tests.models.decoding.decoders import LONG, Kind, long_model
from tests.models.tiny import MAX_LENGTH, STEPPING, random_tokens, seeded, tiny_model


def ended(tokens: torch.Tensor, given_tokens: int, stop: set[int]) -> list[int]:
    """The length of each row, after its rule is checked: a stop token, then -1 to the end."""
    lengths = []
    for row in tokens.tolist():
        drawn = row[given_tokens:]
        end = next((i + 1 for i, token in enumerate(drawn) if token in stop), len(drawn))
        assert all(token >= 0 for token in drawn[:end])
        assert all(token == -1 for token in drawn[end:])
        lengths.append(given_tokens + end)
    return lengths


@given(
    attention=st.sampled_from(STEPPING),
    method=st.sampled_from(["stateful", "rerun"]),
    batch=st.integers(1, 6),
    stop=st.sets(st.integers(0, 6), min_size=1, max_size=3),
    seed=st.integers(0, 50),
)
def test_rows_end_with_their_stop_token(
    attention: str, method: str, batch: int, stop: set[int], seed: int
) -> None:
    model = tiny_model(attention)
    prefix = random_tokens(model, batch, 2)
    tokens = model.generate(
        prefix=prefix, stop_tokens=sorted(stop), generator=seeded(seed), method=method
    )
    assert torch.equal(tokens[:, :2], prefix)
    assert tokens.shape[1] == max(ended(tokens, 2, stop))


def test_rows_that_go_on_are_continued_as_the_model_would(kind: Kind) -> None:
    model = long_model(7).to(kind.device)
    fields = kind.options(model)
    prefix = kind.tokens(model, 8, 2)
    whole = model.generate(prefix=prefix, temperature=0.0, **fields)
    stop = int(whole[0, 5])
    tokens = model.generate(prefix=prefix, temperature=0.0, stop_tokens=stop, **fields)
    lengths = ended(tokens, 2, {stop})
    assert min(lengths) < LONG
    for row, length in enumerate(lengths):
        assert torch.equal(tokens[row, :length], whole[row, :length])


@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4), seed=st.integers(0, 20))
def test_prompts_of_different_lengths_stop_alone(lengths: list[int], seed: int) -> None:
    model = tiny_model()
    prompts = [random_tokens(model, 1, length)[0].tolist() for length in lengths]
    tokens = model.generate(prefix=prompts, stop_tokens=[0, 1], generator=seeded(seed))
    for row, prompt in zip(tokens, prompts, strict=True):
        assert row[: len(prompt)].tolist() == prompt
        ended(row[None], len(prompt), {0, 1})
    shown = [row[row >= 0] for row in tokens]
    assert max(map(len, shown)) == tokens.shape[1]


def test_a_stream_ends_when_all_rows_have_stopped() -> None:
    model = tiny_model()
    steps = list(model.stream(2, stop_tokens=range(7)))
    assert len(steps) == 1 and (steps[0] >= 0).all()


def test_samples_are_those_of_repeated_prompts(kind: Kind) -> None:
    model = long_model(7).to(kind.device)
    fields = kind.options(model)
    prompts, repeated = [[1, 2, 3], [4]], [[1, 2, 3], [1, 2, 3], [4], [4]]
    forked = model.generate(prefix=prompts, num_samples=2, generator=kind.seeded(), **fields)
    alone = model.generate(prefix=repeated, generator=kind.seeded(), **fields)
    assert torch.equal(forked, alone)
    assert len(forked.unique(dim=0)) == 4


def test_lists_and_arrays_are_prompts() -> None:
    model = tiny_model()
    array = np.array([[1, 2], [3, 4]])
    drawn = [
        model.generate(prefix=prefix, generator=seeded())
        for prefix in (torch.from_numpy(array), array, array.tolist(), array.astype(np.uint16))
    ]
    assert all(torch.equal(drawn[0], other) for other in drawn[1:])


@pytest.mark.parametrize(
    "stop", [2, [2], np.int64(2), np.array([2, 2]), torch.tensor(2), torch.tensor([2, 2])], ids=repr
)
def test_integers_of_any_kind_stop(stop: Any) -> None:
    model = tiny_model()
    with torch.no_grad():
        model.output.bias[2] = 50.0
    assert model.generate(2, stop_tokens=stop).tolist() == [[2], [2]]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"stop_tokens": 7}, ValueError),
        ({"stop_tokens": [1, "2"]}, TypeError),
        ({"stop_tokens": 2.5}, TypeError),
        ({"stop_tokens": True}, TypeError),
        ({"stop_tokens": torch.tensor([True])}, TypeError),
        ({"stop_tokens": torch.tensor(2.5)}, TypeError),
        ({"prefix": np.array([[0.5]])}, TypeError),
        ({"num_samples": 0}, ValueError),
        ({"prefix": []}, ValueError),
        ({"prefix": 5}, ValueError),
        ({"prefix": [1, 2, 3]}, TypeError),
        ({"prefix": "text"}, ValueError),
        ({"prefix": [[1], [2.5, "x"]]}, TypeError),
        ({"prefix_lengths": torch.tensor([1, 1]), "prefix": [[1], [2, 3]]}, ValueError),
        ({"prefix": [torch.tensor([1.9, 0.2])]}, TypeError),
        ({"prefix": [np.array([True])]}, TypeError),
        ({"prefix": [[1] * (MAX_LENGTH + 1)]}, ValueError),
    ],
)
def test_prompts_and_stop_tokens_that_cannot_be_right_are_refused(
    options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=f"^{next(iter(options))}: expected"):
        tiny_model().generate(**options)


def test_tokens_of_several_values_do_not_stop() -> None:
    with pytest.raises(ValueError, match="stop_tokens"):
        tiny_model(head=MixtureOfLogistics(2, 3, 8)).generate(stop_tokens=1)
