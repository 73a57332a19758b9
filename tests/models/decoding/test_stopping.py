"""Stop tokens, several samples of a prompt, and prompts as lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linattn_models import MixtureOfLogistics
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


@settings(max_examples=40)
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


def test_a_stream_ends_when_all_rows_have_stopped() -> None:
    model = tiny_model()
    steps = list(model.stream(2, stop_tokens=range(7)))
    assert len(steps) == 1 and (steps[0] >= 0).all()


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
        ({"stop_tokens": True}, TypeError),
        ({"stop_tokens": torch.tensor([True])}, TypeError),
        ({"prefix": np.array([[0.5]])}, TypeError),
        ({"num_samples": 0}, ValueError),
        ({"prefix": []}, ValueError),
        ({"prefix": 5}, ValueError),
        ({"prefix": [1, 2, 3]}, TypeError),
        ({"prefix": "text"}, ValueError),
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
