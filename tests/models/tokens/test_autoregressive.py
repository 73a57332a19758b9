"""A model of tokens: a prediction does not see its token, and decoding agrees with training."""

from __future__ import annotations

import math
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from linattn_models import (
    AutoregressiveTransformer,
    Categorical,
    CharacterTokenizer,
    DecodingState,
    Head,
    MixtureOfLogistics,
    load,
    save,
)
from tests.models.tiny import (
    HEADS,
    MAX_LENGTH,
    STEPPING,
    heads,
    ints,
    random_tokens,
    seeded,
    tiny_config,
    tiny_model,
)


def teacher_forced(
    model: AutoregressiveTransformer, state: DecodingState, tokens: Tensor
) -> Tensor:
    """Parameters after each of tokens (B, n), fed one position at a time."""
    outputs = []
    for column in tokens.unbind(1):
        parameters, state = model.step(column, state)
        outputs.append(parameters)
    return torch.stack(outputs, 1)


@heads
def test_parameters_for_a_token_do_not_see_it(head: Head) -> None:
    model = tiny_model("linear", head)
    tokens = random_tokens(model, 2, 8)
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % head.levels
    before, after = model(tokens), model(changed)
    assert before.shape == (2, 8, head.num_parameters)
    assert torch.equal(before[:, :5], after[:, :5])
    assert ((before[:, 5:] - after[:, 5:]).abs().amax(-1) > 1e-9).all()


@pytest.mark.parametrize("bias", [True, False])
def test_a_tied_output_has_the_matrix_of_the_embedding(tmp_path: Path, bias: bool) -> None:
    config = tiny_config(tie_embeddings=True, bias=bias, num_heads=8)
    model = AutoregressiveTransformer(config, 50, MAX_LENGTH)
    names = [name for name, _ in model.named_parameters() if name.startswith("output")]
    assert names == ["output.bias"] * bias
    tokens = random_tokens(model, 4, MAX_LENGTH)
    assert model.loss(tokens).item() == pytest.approx(math.log(50), abs=0.1)
    save(model, tmp_path)
    for other in (deepcopy(model), load(tmp_path)):
        assert isinstance(other, AutoregressiveTransformer)
        assert other.output.weight is other.embeddings[0].weight
        assert other.output.weight is not model.output.weight
    hidden = model.transformer(model._enter(tokens[:, :-1]))
    torch.testing.assert_close(model(tokens), hidden @ cast(Tensor, model.embeddings[0].weight).T)


def test_only_a_categorical_head_is_tied() -> None:
    with pytest.raises(ValueError, match="tie_embeddings"):
        tiny_model(head=MixtureOfLogistics(2), tie_embeddings=True)
    assert tiny_model(head=MixtureOfLogistics(2), bias=False).output.bias is not None
    with pytest.raises(ValueError, match="start"):
        AutoregressiveTransformer(tiny_config(), MixtureOfLogistics(2), 8, start=False)


@settings(max_examples=40)
@given(
    attention=st.sampled_from(STEPPING),
    head=st.sampled_from(HEADS),
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4),
)
def test_ragged_prompts_go_on_as_each_alone_and_as_the_whole(
    attention: str, head: Head, lengths: list[int]
) -> None:
    model = tiny_model(attention, head)
    tokens = random_tokens(model, len(lengths), MAX_LENGTH)
    more = 3
    with torch.no_grad():
        following = torch.stack([tokens[b, n : n + more] for b, n in enumerate(lengths)])
        parameters, state = model.prefill(tokens[:, :5], torch.tensor(lengths))
        steps = teacher_forced(model, state, following)
        for row, length in enumerate(lengths):
            whole = model(tokens[row : row + 1, : length + more + 1])[0]
            torch.testing.assert_close(parameters[row], whole[length])
            torch.testing.assert_close(steps[row], whole[length + 1 :])
            alone, own = model.prefill(tokens[row : row + 1, :length])
            torch.testing.assert_close(alone[0], parameters[row])
            steps_alone = teacher_forced(model, own, following[row : row + 1])
            torch.testing.assert_close(steps_alone[0], steps[row])


@heads
def test_loss_is_nats_per_dimension(head: Head) -> None:
    model = tiny_model(head=head)
    tokens = random_tokens(model, 2, 6)
    nats = head.negative_log_likelihood(model(tokens), tokens)
    assert nats.shape == (2, 6)
    torch.testing.assert_close(model.loss(tokens), nats.sum() / tokens.numel())


def test_loss_compiles_into_one_graph(attention: str) -> None:
    model = tiny_model(attention, MixtureOfLogistics(2, 3, 8))
    compiled = torch.compile(model.loss, fullgraph=True, backend="aot_eager")
    tokens = random_tokens(model, 2, 5)
    torch.testing.assert_close(compiled(tokens), model.loss(tokens))


@torch.no_grad()
def test_prefill_compiles(attention: str) -> None:
    """Into one graph without lengths; with them, only the call knows how many rows are packed."""
    model = tiny_model(attention)
    tokens = random_tokens(model, 3, 6)

    def compiled(*arguments: torch.Tensor) -> torch.Tensor:
        fullgraph = len(arguments) == 1
        prefill = torch.compile(model.prefill, fullgraph=fullgraph, backend="aot_eager")
        parameters: torch.Tensor = prefill(*arguments)[0]
        return parameters

    for arguments in (tokens,), (tokens, torch.tensor([6, 3, 1])):
        torch.testing.assert_close(compiled(*arguments), model.prefill(*arguments)[0])


def test_a_full_sequence_refuses_to_go_on(attention: str) -> None:
    model = tiny_model(attention)
    tokens = random_tokens(model, 2, MAX_LENGTH)
    _, state = model.prefill(tokens[:, :-1], torch.tensor([8, 2]))
    with pytest.raises(ValueError, match="at most 9 positions, got 10"):
        model.step(tokens[:, 0], state)
    with pytest.raises(ValueError, match="tokens"):
        model.prefill(tokens)
    with pytest.raises(ValueError, match="at most the model's 9 positions, got 10"):
        model.prefill(tokens[:, :3], max_length=10)


@pytest.mark.parametrize(
    ("head", "tokens"),
    [
        (7, ints(2, 3, 3)),
        (7, ints(2, 0)),
        (7, ints(2, 10)),
        (7, torch.zeros(2, 3)),
        (7, torch.tensor([[1, 7]])),
        (7, [[1, 2]]),
        (HEADS[2], ints(2, 3)),
        (HEADS[2], torch.full((1, 2, 3), 8)),
    ],
)
def test_refuses_tokens_that_cannot_be_right(head: Any, tokens: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"^tokens"):
        tiny_model(head=head).loss(tokens)


def test_refuses_models_that_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="is_causal"):
        tiny_model(is_causal=False)
    with pytest.raises(ValueError, match="positions"):
        tiny_model(positions="sinusoid")
    with pytest.raises(ValueError, match="max_length"):
        AutoregressiveTransformer(tiny_config(), 7, 0)
    with pytest.raises(TypeError, match="config"):
        AutoregressiveTransformer({}, 7)  # type: ignore[arg-type]
    for head in ("x", Categorical, 7.0):
        with pytest.raises(TypeError, match=r"^head"):
            AutoregressiveTransformer(tiny_config(), head, 9)  # type: ignore[arg-type]


@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=3), seed=st.integers(0, 20))
def test_tokens_beyond_the_lengths_do_not_count(lengths: list[int], seed: int) -> None:
    model = tiny_model()
    tokens = torch.randint(7, (len(lengths), 6), generator=seeded(seed))
    for row, length in enumerate(lengths):
        tokens[row, length:] = -1
    log_probs = model.log_probs(tokens, torch.tensor(lengths))
    total = 0.0
    for row, length in enumerate(lengths):
        assert (log_probs[row, length:] == 0).all()
        if length:
            alone = model.log_probs(tokens[row : row + 1, :length])[0]
            torch.testing.assert_close(log_probs[row, :length], alone)
            total -= float(alone.sum().detach())
    if sum(lengths):
        loss = model.loss(tokens, torch.tensor(lengths))
        assert loss.item() == pytest.approx(total / sum(lengths))
    else:
        with pytest.raises(ValueError, match="lengths"):
            model.loss(tokens, torch.tensor(lengths))


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    seed=st.integers(0, 20),
    whole=st.booleans(),
)
def test_tokens_that_a_mask_leaves_out_do_not_count(
    lengths: list[int], seed: int, whole: bool
) -> None:
    """As a mask, or as labels; the tokens after them read them all the same."""
    model = tiny_model("linear")
    shape = len(lengths), 6
    tokens = torch.randint(7, shape, generator=seeded(seed))
    mask = torch.rand(shape, generator=seeded(seed)) < 0.5
    given = None if whole else torch.tensor(lengths)
    counted = mask if given is None else mask & (torch.arange(6) < given[:, None])
    labels = tokens.masked_fill(~mask, -100)
    if counted.any():
        expected = -model.log_probs(tokens)[counted].mean()
        for loss_mask in (mask, labels):
            torch.testing.assert_close(model.loss(tokens, given, loss_mask), expected)
    else:
        with pytest.raises(ValueError, match="lengths"):
            model.loss(tokens, given, mask)


@pytest.mark.parametrize(
    "loss_mask",
    [
        torch.ones(2, 5),
        torch.ones(1, 5, dtype=torch.bool),
        [1],
        torch.tensor([[0, 0, 1, 1, 1]] * 2),  # a mask of integers would count all
        torch.nested.nested_tensor([torch.ones(5) > 0] * 2, layout=torch.jagged),
    ],
)
def test_masks_that_are_none_are_refused(loss_mask: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="loss_mask: expected"):
        tiny_model("linear").loss(ints(2, 5), loss_mask=loss_mask)


@pytest.mark.parametrize("start", [True, False])
def test_perplexity_of_texts_is_that_of_their_tokens(start: bool) -> None:
    model = AutoregressiveTransformer(tiny_config(), 3, 9, start=start).eval()
    model.tokenizer = CharacterTokenizer("abc")
    texts = ["abcab", "c", "ca"]
    rows = [model.log_probs(torch.tensor([model.tokenizer.encode(text)]))[0] for text in texts]
    log_probs = torch.cat([row if start else row[1:] for row in rows])
    expected = float((-log_probs.detach().mean()).exp())
    assert model.perplexity(texts) == pytest.approx(expected)
    assert model.perplexity(["abcab"]) == model.perplexity("abcab")
    for wrong in ("", "abd", ["a" * 10], [3.5]):
        with pytest.raises((ValueError, TypeError)):
            model.perplexity(wrong)
