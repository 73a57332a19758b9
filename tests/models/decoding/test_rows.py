"""Settings, seeds and lengths of each row, whose tokens do not depend on the other rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linattn_models import Categorical, Head, MixtureOfLogistics
from linattn_models.decoding.philox import Streams, philox
from linattn_models.heads.filters import Filters
from tests.models.decoding.decoders import Kind, long_model
from tests.models.tiny import heads, random_tokens, seeded, tiny_model

# Each request: a prompt, and settings of its own.
REQUESTS: list[dict[str, Any]] = [
    {"prefix": [1, 2, 3], "seeds": 5, "temperature": 0.7, "max_new_tokens": 6},
    {"prefix": [4], "seeds": 5, "temperature": 1.3, "max_new_tokens": 12, "top_k": 3},
    {"prefix": [], "seeds": -8, "temperature": 0.0, "max_new_tokens": 4, "top_p": 0.8},
    {"prefix": [6, 0], "seeds": 2**62, "temperature": 1.0, "max_new_tokens": 9, "min_p": 0.3},
    {"prefix": [2, 2], "seeds": 1, "max_new_tokens": 8, "repetition_penalty": 2.5},
]
NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def words(*hexes: str) -> Tensor:
    return torch.tensor([int(x, 16) for x in hexes])


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (["0"] * 4, ["0"] * 2, ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]),
        (["ffffffff"] * 4, ["ffffffff"] * 2, ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"]),
        (
            ["243f6a88", "85a308d3", "13198a2e", "03707344"],
            ["a4093822", "299f31d0"],
            ["d16cfe09", "94fdcceb", "5001e420", "24126ea1"],
        ),
    ],
)
def test_philox_gives_the_words_of_its_authors(
    counter: list[str], key: list[str], expected: list[str]
) -> None:
    assert torch.equal(philox(words(*counter), words(*key)), words(*expected))


def test_a_stream_depends_on_its_seed_sample_and_position_alone() -> None:
    seeds, samples, places = torch.tensor([[3, -1, 3], [0, 0, 1], [7, 1 << 33, 0]])
    still = torch.tensor([False, False, False])
    together = Streams(seeds, samples, places, still)
    for count in (1, 50, 19):
        together.take(count)
    together.select_rows(torch.tensor([2, 1, 1]))
    other = Streams(seeds[:1], samples[:1], places[:1] + 5, still[:1])
    other.take()
    together.put(torch.tensor([2]), other)
    taken = torch.cat([together.take(), together.take(80)])
    for column, (row, start) in enumerate(((2, 70), (1, 70), (0, 6))):
        own = slice(row, row + 1)
        alone = Streams(seeds[own], samples[own], places[own] + start, still[own], ahead=1)
        assert torch.equal(torch.cat([alone.take() for _ in range(81)])[:, 0], taken[:, column])
    assert bool(((taken > 0) & (taken < 1)).all())


def alone(decoder: Any, request: dict[str, Any]) -> list[int]:
    """The tokens of a request by itself."""
    fields = {**request, "prefix": [request["prefix"]], "seeds": [request["seeds"]]}
    row: list[int] = decoder.generate(**fields)[0].tolist()
    return row


def test_requests_get_the_same_tokens_alone_and_together(kind: Kind) -> None:
    model = long_model().to(kind.device)
    torch.nn.init.normal_(model.output.weight, std=1.0)
    decoder = kind.decoder(model)
    rows = REQUESTS * 3
    fields = {name: [row.get(name) for row in rows] for name in (*NAMES, "seeds", "max_new_tokens")}
    together = decoder.generate(prefix=[row["prefix"] for row in rows], **fields)
    for row, request in enumerate(REQUESTS):
        tokens = alone(decoder, request)
        for copy in (row, row + 5, row + 10):
            assert together[copy, : len(tokens)].tolist() == tokens
            assert bool((together[copy, len(tokens) :] == -1).all())
    streamed = list(decoder.stream(prefix=[row["prefix"] for row in rows], **fields))
    for row, request in enumerate(REQUESTS):
        drawn = [int(step[row]) for step in streamed if step[row] >= 0]
        assert drawn == alone(decoder, request)[len(request["prefix"]) :]


@heads
def test_requests_continue_from_a_state(kind: Kind, head: Head) -> None:
    decoder = kind.decoder(long_model(head).to(kind.device))
    fields: dict[str, Any] = {"seeds": [3, 4], "temperature": [0.9, 1.2]}
    whole = decoder.generate(2, length=12, **fields)
    part, state = decoder.generate(2, length=5, return_state=True, **fields)
    rest = decoder.generate(state=state, length=7, **fields)
    assert torch.equal(torch.cat([part, rest], 1), whole)


@pytest.mark.parametrize("method", ["stateful", "rerun"])
def test_samples_of_a_prompt_differ_and_are_its_own(method: str) -> None:
    model = tiny_model()
    fields: dict[str, Any] = {"num_samples": 3, "length": 9, "method": method}
    together = model.generate(prefix=[[1], [1]], seeds=[7, 8], **fields)
    own = model.generate(prefix=[[1]], seeds=[8], **fields)
    assert torch.equal(together[3:], own)
    assert len(together.unique(dim=0)) == 6
    assert torch.equal(model.generate(prefix=[[1]], seeds=8, **fields), own)


def test_seeds_and_a_generator_are_not_taken_together() -> None:
    with pytest.raises(ValueError, match="generator"):
        tiny_model().generate(4, seeds=1, generator=seeded(0))


@pytest.mark.parametrize("head", [Categorical(5), MixtureOfLogistics(2, 1, 5)], ids=str)
def test_seeds_draw_from_the_distribution(head: Head) -> None:
    model = tiny_model(head=head, positions="none")
    with torch.no_grad():
        model.output.weight.normal_(std=2.0)
        parameters, _ = model.prefill(torch.zeros(1, 0, dtype=torch.int64))
        every = torch.arange(5)
        expected = (-head.negative_log_likelihood(parameters.expand(5, -1), every)).exp()
    tokens = model.generate(20_000, length=1, seeds=0)
    shares = tokens.flatten().bincount(minlength=5) / len(tokens)
    torch.testing.assert_close(shares.double(), expected, atol=0.015, rtol=0)


@given(seed=st.integers(0, 99), vocabulary=st.sampled_from([7, 600]))
def test_filters_of_rows_are_those_of_each_row_alone(seed: int, vocabulary: int) -> None:
    logits = torch.randn(4, vocabulary, generator=seeded(seed), dtype=torch.float64) * 2
    limits: dict[str, Any] = {
        "top_k": [3, None, 1_000, 400],
        "top_p": [None, 0.3, 0.999, 1.0],
        "min_p": [0.1, 0.0, None, 0.01],
    }
    temperatures = [1.0, 0.5, 2.0, 1.5]
    together = Filters(**limits)(logits, torch.tensor(temperatures).double().unsqueeze(1))
    for row, temperature in enumerate(temperatures):
        own = Filters(**{name: values[row] for name, values in limits.items()})
        assert torch.equal(own(logits[row : row + 1], temperature)[0], together[row])


def test_the_head_takes_filters() -> None:
    head, logits = Categorical(5), torch.tensor([[0.0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]).repeat(50, 1)
    assert set(head.sample(logits, top_k=2).tolist()) <= {0, 1, 3, 4}
    greedy = head.sample(logits, min_p=[1.0] * 100, generator=seeded())
    assert torch.equal(greedy, logits.argmax(-1))
    assert head.sample(logits.view(4, 25, 5), top_p=0.5).shape == (4, 25)
    with pytest.raises(ValueError, match="top_k"):
        head.sample(logits, top_k=[1, 2])


def test_a_penalty_makes_the_tokens_so_far_less_likely() -> None:
    """Logits above 0 are divided, the others multiplied; tokens of the prompt count."""
    model = tiny_model()
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.bias.copy_(torch.tensor([2.0, 1.6, 1.3, -1.0, 0.0, 0.5, 0.1]))
    prompts = [[5, 5], [0]]
    tokens = model.generate(prefix=prompts, temperature=0, repetition_penalty=2.0, length=6)
    # 2, then 1.6, then 1.3, then the larger of half of each and 0.5; 0 comes first only where new.
    assert tokens.tolist() == [[5, 5, 0, 1, 2, 0], [0, 1, 2, 0, 0, 0]]
    free = model.generate(
        prefix=prompts, temperature=0, repetition_penalty=[None, 2.0], length=[4, 3]
    )
    assert free.tolist() == [[5, 5, 0, 0], [0, 1, 2, -1]]


def test_a_row_at_the_last_position_ends_beside_others(kind: Kind) -> None:
    model = long_model().to(kind.device)
    decoder = kind.decoder(model)
    fields: dict[str, Any] = {"temperature": 0.0, "return_state": True}
    prompts = [[1] * 22, [2] * 3, [1] * 23]
    tokens, state = decoder.generate(prefix=prompts, max_new_tokens=1, **fields | {"length": None})
    assert (tokens >= 0).sum(1).tolist() == [23, 4, 23]
    assert torch.as_tensor(state.position).tolist() == [24, 5, 24]
    more, after = decoder.generate(state=state, max_new_tokens=10, **fields)
    assert (more >= 0).sum(1).tolist() == [0, 10, 0]
    assert torch.as_tensor(after.position).tolist() == [24, 15, 24]
    own, _ = decoder.generate(prefix=[[2] * 3], max_new_tokens=11, **fields)
    assert torch.equal(torch.cat([tokens[1, :4], more[1]]), own[0])
    last = decoder.generate(state=state, max_new_tokens=10, temperature=0.0)
    assert (last >= 0).sum(1).tolist() == [1, 10, 1]  # nothing has to be read after it
    with pytest.raises(ValueError, match="max_new_tokens"):
        decoder.generate(state=state.index_select([0, 2]), max_new_tokens=2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", [0.5]),
        ("temperature", torch.tensor([0.5, -1.0, 1.0])),
        ("temperature", "warm"),
        ("temperature", 10**400),
        ("top_k", [1.5, 2, 3]),
        ("top_k", torch.tensor([1, 0, 2])),
        ("top_p", [0.5, 2.0, 1.0]),
        ("top_p", True),
        ("min_p", 1.1),
        ("min_p", [[0.1, 0.1, 0.1]]),
        ("repetition_penalty", [1.0, float("inf"), 1.0]),
        ("seeds", [1, 2]),
        ("seeds", 2**63),
        ("length", [3, 4]),
        ("length", [3, 0, 4]),
        ("length", 2**70),
        ("max_new_tokens", [3, 4.5, 1]),
        ("max_new_tokens", [3, 2**70, 1]),
    ],
)
def test_bad_settings_of_rows(name: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{name}: expected"):
        tiny_model().generate(3, **{name: value})


@pytest.mark.parametrize("method", ["stateful", "rerun"])
@pytest.mark.parametrize("top_k", [7, 2**70, [2**70, None, 7]])
def test_filters_that_leave_out_nothing_change_nothing(method: str, top_k: Any) -> None:
    model = tiny_model()
    fields: dict[str, Any] = {"seeds": 1, "method": method}
    tokens = model.generate(3, top_k=top_k, top_p=1.0, min_p=0.0, **fields)
    assert torch.equal(tokens, model.generate(3, **fields))


@pytest.mark.parametrize("options", [{"repetition_penalty": 1.2}, {"top_k": 3}])
def test_heads_that_cannot_draw_so(kind: Kind, options: dict[str, Any]) -> None:
    (name,) = options
    model = long_model(MixtureOfLogistics(2, 1, 17)).to(kind.device)
    with pytest.raises(ValueError, match=name):
        kind.decoder(model).generate(1, **options)


def test_a_prompt_longer_than_its_own_length() -> None:
    model = tiny_model()
    with pytest.raises(ValueError, match=r"^prefix"):
        model.generate(prefix=random_tokens(model, 2, 4), length=[5, 3])
