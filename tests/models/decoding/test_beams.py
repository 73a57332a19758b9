"""Beam search keeps the likeliest hypotheses, the same for every decoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linattn_models import AutoregressiveTransformer, MixtureOfLogistics
from tests.models.decoding.decoders import Kind, long_model
from tests.models.tiny import STEPPING, random_tokens, tiny_config, tiny_model


def spread_model(attention: str, vocabulary: int = 7) -> AutoregressiveTransformer:
    model = tiny_model(attention, vocabulary)
    torch.nn.init.normal_(model.output.weight, std=0.7)
    return model


def by_hand(
    model: AutoregressiveTransformer,
    prompt: list[int],
    length: int,
    width: int,
    stop: set[int],
    penalty: float,
) -> list[tuple[float, list[int]]]:
    """The same search over lists, every prefix run whole."""
    beams: list[tuple[float, list[int], bool]] = [(0.0, [], False)]
    for _ in range(length - len(prompt)):
        grown = []
        for total, drawn, ended in beams:
            if ended:
                grown.append((total, drawn, True))
                continue
            known = torch.tensor([prompt + drawn], dtype=torch.int64)
            log_probs = model.predict_next(known)[0].log_softmax(-1)
            grown += [
                (total + float(x), [*drawn, token], token in stop)
                for token, x in enumerate(log_probs.detach())
            ]
        beams = sorted(grown, key=lambda x: -x[0] / max(1, len(x[1])) ** penalty)[:width]
    return [(total / max(1, len(drawn)) ** penalty, drawn) for total, drawn, _ in beams]


@given(
    attention=st.sampled_from(STEPPING),
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    width=st.integers(1, 4),
    stop=st.sets(st.integers(0, 6), max_size=2),
    penalty=st.sampled_from([0.0, 1.0]),
    method=st.sampled_from(["stateful", "rerun"]),
)
@settings(max_examples=40)
def test_is_the_search_by_hand(
    attention: str, lengths: list[int], width: int, stop: set[int], penalty: float, method: str
) -> None:
    model = spread_model(attention)
    prompts = [random_tokens(model, 1, length)[0].tolist() for length in lengths]
    tokens, scores = model.beam_search(
        prefix=prompts,
        num_beams=width,
        length=5,
        stop_tokens=sorted(stop),
        length_penalty=penalty,
        method=method,
    )
    for row, prompt in enumerate(prompts):
        expected = by_hand(model, prompt, 5, width, stop, penalty)
        for beam, (score, drawn) in enumerate(expected):
            assert [x for x in tokens[row, beam].tolist() if x >= 0] == prompt + drawn
            assert scores[row, beam].item() == pytest.approx(score)


@pytest.mark.parametrize("stop", [None, 3])
def test_a_hypothesis_that_has_ended_is_there_once(stop: int | None) -> None:
    """Beside a row that is complete at the start and has no other."""
    model = spread_model("linear")
    tokens, scores = model.beam_search(
        prefix=[[1, 2, 3, 4, 5], [1, 2]], num_beams=4, length=5, stop_tokens=stop
    )
    assert scores[0].tolist() == [0.0, *3 * [-torch.inf]]
    assert tokens[0, 0].tolist() == [1, 2, 3, 4, 5]
    real = {
        tuple(x) for x, score in zip(tokens[1].tolist(), scores[1], strict=True) if score > -9e9
    }
    assert len(real) == 4


def test_every_decoder_finds_the_same(kind: Kind) -> None:
    model = long_model().to(kind.device)
    torch.nn.init.normal_(model.output.weight, std=0.7)
    prefix = kind.tokens(model, 2, 3)
    expected = model.beam_search(prefix=prefix, num_beams=3, length=12, decoder="eager")
    decoder = kind.decoder(model)
    _, state = model.prefill(prefix)
    for found in (
        decoder.beam_search(prefix=prefix, num_beams=3, length=12),
        model.beam_search(prefix=prefix, num_beams=3, length=12, **kind.options(model)),
    ):
        assert torch.equal(found.tokens, expected.tokens)
        torch.testing.assert_close(found.scores, expected.scores, rtol=1e-4, atol=1e-5)
    behind = decoder.beam_search(state=state, num_beams=3, length=9)
    assert torch.equal(behind.tokens, expected.tokens[:, :, 3:])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"num_beams": 0}, "num_beams"),
        ({"num_beams": 8}, "num_beams"),
        ({"num_beams": 2, "length_penalty": -1.0}, "length_penalty"),
        ({"num_beams": 2, "stop_tokens": 7}, "stop_tokens"),
        ({"num_beams": 2, "length": 10}, "length"),
    ],
)
def test_refuses_what_cannot_be_right(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        tiny_model().beam_search(**options)


def test_heads_without_a_list_of_tokens_are_refused() -> None:
    model = AutoregressiveTransformer(tiny_config(), MixtureOfLogistics(2, 1, 17), 9)
    with pytest.raises(ValueError, match="Categorical"):
        model.beam_search(num_beams=2)


def test_each_prompt_gets_as_many_new_tokens() -> None:
    model = spread_model("linear")
    together = model.beam_search(prefix=[[1], [2, 3, 4]], num_beams=3, max_new_tokens=4)
    for row, prompt in enumerate(([1], [2, 3, 4])):
        whole = len(prompt) + 4
        alone = model.beam_search(prefix=[prompt], num_beams=3, length=whole)
        assert torch.equal(together.tokens[row, :, :whole], alone.tokens[0])
        assert (together.tokens[row, :, whole:] == -1).all()
        torch.testing.assert_close(together.scores[row], alone.scores[0])


def test_a_logit_of_infinity_is_certain() -> None:
    model = spread_model("linear")
    with torch.no_grad():
        model.output.bias[3] = torch.inf
    tokens, scores = model.beam_search(num_beams=3, length=4)
    assert tokens[0, 0].tolist() == [3, 3, 3, 3] and scores[0, 0] == 0
    assert not scores.isnan().any()
