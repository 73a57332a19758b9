"""A target is generated from a source's state as the whole model predicts it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from linattn_models import (
    CannotCompile,
    DecodingState,
    Head,
    Seq2SeqTransformer,
    compile_decoder,
    load,
    save,
)
from tests.models.tiny import MAX_LENGTH, greedy, seeded, tiny_config, tiny_model

FIELDS: list[dict[str, Any]] = [
    {},
    {"encoder": "softmax", "positions": "learned", "norm_first": False},
    {"positions": "learned", "num_kv_heads": 1, "feature_map": "hedgehog", "decay": "learned"},
]


def model_of(
    encoder: str = "linear",
    head: Head | int = 7,
    max_length: int | None = MAX_LENGTH,
    positions: str = "sinusoidal",
    **fields: Any,
) -> Seq2SeqTransformer:
    configs = tiny_config(encoder, is_causal=False), tiny_config(cross_attention=True, **fields)
    model = Seq2SeqTransformer(*configs, 5, head, max_length, positions).double().eval()
    torch.nn.init.normal_(model.output.weight, std=2.0)
    return model


def sources(batch: int, length: int) -> Tensor:
    return torch.randint(5, (batch, length))


def shown(lengths: list[int], length: int) -> Tensor:
    return torch.arange(length) < torch.tensor(lengths).unsqueeze(1)


@pytest.mark.parametrize("fields", FIELDS)
def test_prefills_and_steps_are_the_whole(fields: dict[str, Any]) -> None:
    model = model_of(**fields)
    source, target = sources(3, 6), torch.randint(7, (3, MAX_LENGTH))
    mask = shown([6, 2, 4], 6)
    whole = model(source, target, mask)
    with torch.no_grad():
        state = model.read(source, mask)
        torch.testing.assert_close(state.parameters, whole[:, 0])
        _, state = model.prefill(target[:, :3], torch.tensor([3, 0, 2]), state)
        for row, position in enumerate((3, 0, 2)):
            torch.testing.assert_close(state.parameters[row], whole[row, position])
        state = model.prefill(target[:, :2], state=model.read(source, mask))[1]
        for position in range(2, MAX_LENGTH - 1):
            parameters, state = model.step(target[:, position], state)
            torch.testing.assert_close(parameters, whole[:, position + 1])


@pytest.mark.parametrize("fields", FIELDS)
def test_generates_what_the_whole_predicts(fields: dict[str, Any]) -> None:
    model = model_of(**fields)
    source = sources(3, 6)
    state = model.read(source)
    tokens = greedy(model, state=state)
    assert tokens.shape == (3, MAX_LENGTH)
    assert torch.equal(model(source, tokens).argmax(-1), tokens)
    assert torch.equal(torch.stack(list(model.stream(state=state, temperature=0.0)), 1), tokens)
    prompts = [[1, 2], [], [3]]
    ragged = greedy(model, state=state, prefix=prompts)
    own = model(source, ragged).argmax(-1)
    for row, prompt in enumerate(prompts):
        assert torch.equal(own[row, len(prompt) :], ragged[row, len(prompt) :])


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none"])
@pytest.mark.parametrize("encoder", ["linear", "softmax"])
def test_a_padded_source_gives_what_it_gives_alone(encoder: str, positions: str) -> None:
    model = model_of(encoder, positions=positions)
    source, target = sources(1, 3), torch.randint(7, (1, 4))
    alone = model(source, target)
    for left in (0, 1, 3):
        padded = torch.nn.functional.pad(source, (left, 3 - left), value=-1)
        torch.testing.assert_close(model(padded, target, padded >= 0), alone)


@pytest.mark.parametrize("fields", FIELDS)
def test_gradient_reaches_every_parameter(fields: dict[str, Any]) -> None:
    model = model_of(**fields)
    source, target = sources(4, 6), torch.randint(7, (4, MAX_LENGTH))
    model.loss(source, target, torch.tensor([9, 1, 9, 9]), shown([6, 2, 6, 1], 6)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        # Of 9 positions of sources, 6 are seen.
        assert parameter.grad.abs().sum() > 0, name


def test_loss_is_the_mean_of_what_lengths_leave() -> None:
    model = model_of()
    source, target = sources(2, 4), torch.randint(7, (2, 5))
    lengths = torch.tensor([5, 2])
    padded = target.masked_fill(~shown([5, 2], 5), -1)
    logits = model(source, target).log_softmax(-1)
    each = logits.gather(2, target.unsqueeze(2)).squeeze(2)
    expected = each.masked_fill(~shown([5, 2], 5), 0.0)
    torch.testing.assert_close(model.log_probs(source, padded, lengths), expected)
    torch.testing.assert_close(model.loss(source, padded, lengths), -expected.sum() / 7)
    torch.testing.assert_close(model.loss(source, target), -each.mean())
    with pytest.raises(ValueError, match="lengths"):
        model.loss(source, target, torch.tensor([0, 0]))


def test_a_search_as_wide_as_all_sequences_finds_the_best() -> None:
    model = model_of(head=3)
    source = sources(2, 4)
    beams, scores = model.beam_search(state=model.read(source), num_beams=3, length=2)
    every = torch.cartesian_prod(torch.arange(3), torch.arange(3))  # (9, 2)
    for row in range(2):
        sums = model.log_probs(source[row].expand(9, -1), every).sum(1)
        best = sums.topk(3)
        assert torch.equal(beams[row, 0], every[best.indices[0]])
        torch.testing.assert_close(scores[row, 0].double(), best.values[0], rtol=1e-5, atol=1e-5)


def test_samples_stop_and_states_join() -> None:
    model = model_of()
    source = sources(3, 4)
    state = model.read(source)
    options = {"length": 6, "num_samples": 2, "stop_tokens": [0, 1], "return_state": True}
    tokens, after = model.generate(state=state, generator=seeded(), **options)
    assert after.batch == 6
    for row, known in enumerate(tokens):
        own = known[known >= 0].unsqueeze(0)
        one = source[row // 2].unsqueeze(0)
        expected, _ = model.prefill(own, state=model.read(one))
        torch.testing.assert_close(after.parameters[row], expected[0])
    parts = [model.read(sources(1, length)) for length in (1, 8)]
    assert parts[0].nbytes == parts[1].nbytes
    joined = DecodingState.cat([*parts, *after.split([2, 4])])
    apart = [greedy(model, state=part, length=3) for part in joined.split(1)]
    assert torch.equal(greedy(model, state=joined, length=3), torch.cat(apart))


@pytest.mark.parametrize("fields", FIELDS)
def test_model_and_state_round_trip(fields: dict[str, Any], tmp_path: Path) -> None:
    model = model_of(**fields)
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert isinstance(loaded, Seq2SeqTransformer) and loaded.to_dict() == model.to_dict()
    source, target = sources(2, 4), torch.randint(7, (2, 5))
    assert torch.equal(loaded(source, target), model(source, target))
    tokens, state = greedy(model, state=model.read(source), length=4, return_state=True)
    state.save(tmp_path / "state")
    rest = greedy(loaded, state=DecodingState.load(tmp_path / "state"))
    whole = greedy(model, state=model.read(source))
    assert torch.equal(torch.cat([tokens, rest], 1), whole)


CAUSAL, CROSS = tiny_config(), tiny_config(cross_attention=True)
WHOLE, NARROW = (tiny_config(is_causal=False, head_dim=dim) for dim in (4, 3))
SOURCE, TARGET = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m: m.generate(2), "state"),
        (lambda m: m.stream(2), "state"),
        (lambda m: m.beam_search(num_beams=2), "expected one that has read a source, got None"),
        (lambda m: m.prefill(TARGET), "state"),
        (lambda m: m.generate(state=tiny_model().prefill(TARGET)[1]), "state"),
        (lambda m: m.prefill(TARGET, state=m.read(SOURCE).to(torch.float32)), "layer 0"),
        (lambda m: m.generate(state=m.read(SOURCE), method="rerun"), "got method 'rerun'"),
        (lambda m: m.generate(state=m.read(SOURCE), decoder="compiled"), "no cross-attention"),
        (lambda m: m.generate(state=m.read(SOURCE), length=10), "at most the model's 9 positions"),
        (lambda m: m(SOURCE, TARGET[:1]), "target"),
        (lambda m: m(SOURCE + 5, TARGET), "source"),
        (lambda m: m(SOURCE, TARGET + 7), "target"),
        (lambda m: m(SOURCE[0], TARGET, SOURCE[0] == 0), "source"),
        (lambda m: m(SOURCE, TARGET, TARGET == 0), "attn_mask"),
        (lambda m: m(SOURCE[:, :0], TARGET), "source"),
        (lambda m: m.train().read(SOURCE), "evaluation mode"),
        (lambda m: model_of(causal_block=2), "causal_block"),
        (lambda m: Seq2SeqTransformer(CAUSAL, CROSS, 7, 7, 9), "the encoder: expected is_causal"),
        (lambda m: Seq2SeqTransformer(WHOLE, CAUSAL, 7, 7, 9), "the decoder"),
        (lambda m: Seq2SeqTransformer(NARROW, CROSS, 7, 7, 9), "embed_dim"),
        (lambda m: model_of(positions="learned", max_length=None), "a number of positions"),
    ],
)
def test_refuses_what_cannot_be_right(call: Any, said: str) -> None:
    model = model_of(positions="learned", dropout=0.1)
    with pytest.raises(ValueError, match=re.escape(said)):
        call(model)


def test_a_compiled_decoder_says_why_not() -> None:
    model = model_of().float()
    with pytest.raises(CannotCompile, match="cross-attention"):
        compile_decoder(model)
    state = model.read(SOURCE)
    tokens = greedy(model, state=state, length=20)  # enough to be worth packing
    assert torch.equal(tokens, greedy(model, state=state, length=20, decoder="eager"))
