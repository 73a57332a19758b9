"""What decoders refuse, before a state has changed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from linattn_core.decoder_spec import CannotCompile, Sampler
from linattn_models.decoding.compiled import compile_described
from tests.models.decoding.decoders import (
    KINDS,
    Kind,
    close,
    forced,
    model_of,
    needs_cpu_backend,
)
from tests.models.tiny import MAX_LENGTH, ints, tiny_model


def test_dropout_in_training_mode_refuses_generation_and_leaves_decoders_alone(
    compiled: Kind,
) -> None:
    model = model_of(dropout=0.5).train().to(compiled.device)
    decoder = compiled.decoder(model)
    for each in (decoder, "eager"):
        with pytest.raises(ValueError, match="eval"):
            model.generate(decoder=each)
    tokens = compiled.tokens(model, 2, 4)
    actual = forced(decoder, tokens)
    close(actual, model.eval()(tokens).detach())


@pytest.mark.parametrize(
    "change",
    [
        lambda d: replace(d, num_heads=-d.num_heads, head_dim=-d.head_dim),
        lambda d: replace(d, num_heads=1, head_dim=8, num_kv_heads=2),
        lambda d: replace(d, tokens=replace(d.tokens, sampler=Sampler("categorical", 8))),
        lambda d: replace(d, tokens=replace(d.tokens, embeddings=d.tokens.embeddings * 2)),
        lambda d: replace(d, tokens=replace(d.tokens, sampler=Sampler("other", 7))),
    ],
)
def test_native_code_gets_no_sizes_that_do_not_fit(change: Any) -> None:
    with pytest.raises(CannotCompile, match="expected"):
        change(model_of().describe())


def of_another_model(**fields: Any) -> Any:
    return tiny_model("linear", **fields).float().prefill(ints(2, 1))[1]


SHAPES_AND_DTYPES: list[Any] = [
    (lambda d, s: d.step(ints(2, 1), s), ValueError, "shape (batch), got (2, 1)"),
    (lambda d, s: d.step(torch.zeros(2), s), TypeError, "int64, got torch.float32"),
    (lambda d, s: d.step(ints(3), s), ValueError, "3"),
    (lambda d, s: d.prefill(ints(2, 9)), ValueError, "length 0 to 8, got 9"),
    (lambda d, s: d.prefill(torch.zeros(2, 3)), TypeError, "int64, got torch.float32"),
    (lambda d, s: d.prefill(ints(2, 3), torch.tensor([0, 4])), ValueError, "0..3"),
    (lambda d, s: d.generate(temperature=-1.0), ValueError, "temperature"),
    (lambda d, s: d.generate(num_samples=10**9), ValueError, "num_samples: expected at most"),
    (lambda d, s: d.generate(batch=10**9), ValueError, "batch: expected at most 1,048,576, got"),
    (lambda d, s: d.generate(2000, num_samples=2000), ValueError, "got 2000 from each of 2000"),
]
STATES: list[Any] = [
    (lambda d, s: d.step(ints(2), s.to(torch.float64)), ValueError, "float64"),
    (lambda d, s: d.step(ints(2), replace(s, layers=s.layers[:1])), ValueError, "layers"),
    (lambda d, s: d.step(ints(2), of_another_model(num_layers=3)), ValueError, "layers"),
    (lambda d, s: d.step(ints(2), of_another_model(num_heads=3)), ValueError, "(2, 2, 4, 4)"),
    (lambda d, s: d.step(ints(2), of_another_model(head=5)), ValueError, "state"),
    (lambda d, s: d.prefill(ints(2, 1), state=of_another_model(head=5)), ValueError, "state"),
    (lambda d, s: d.generate(state=of_another_model(head=5), length=2), ValueError, "state"),
    (lambda d, s: d.step(ints(2), (1, 2)), TypeError, "state"),
    (lambda d, s: d.step([0, 0], s), TypeError, "tensor"),
    (lambda d, s: d.prefill([[0], [0]], state=s), TypeError, "tensor"),
    (lambda d, s: d.step(torch.zeros(2, dtype=torch.int64, device="meta"), s), ValueError, "meta"),
    (lambda d, s: d.prefill(ints(2, 0).to("meta")), ValueError, "on cpu, got meta"),
    (lambda d, s: d.generate(method="rerun"), ValueError, "method"),
    (lambda d, s: d.generate(decoder="eager"), ValueError, "decoder='eager'"),
]


@pytest.mark.parametrize(("call", "error", "said"), SHAPES_AND_DTYPES)
def test_a_decoder_refuses(kind: Kind, call: Any, error: type[Exception], said: str) -> None:
    if kind.device.type != "cpu":
        pytest.skip("the tensors are on the CPU")
    refuses(kind, call, error, re.escape(said))


@pytest.mark.parametrize(("call", "error", "said"), STATES)
def test_a_compiled_decoder_refuses(
    compiled: Kind, call: Any, error: type[Exception], said: str
) -> None:
    if compiled.device.type != "cpu":
        pytest.skip("the tensors are on the CPU")
    refuses(compiled, call, error, re.escape(said))


def refuses(kind: Kind, call: Any, error: type[Exception], pattern: str) -> None:
    """A call of a decoder and a state raises the error, and leaves the state as it was."""
    decoder = kind.decoder(model_of())
    _, state = decoder.prefill(ints(2, 3))
    before = state.clone()
    with pytest.raises(error, match=pattern):
        call(decoder, state)
    for layer, kept in zip(state.layers, before.layers, strict=True):
        assert all(map(torch.equal, layer, kept))


@pytest.mark.parametrize("name", KINDS[:2])
@pytest.mark.parametrize("token", [[1, 7], [-1, 0]], ids=str)
@torch.no_grad()
def test_a_step_explains_tokens_out_of_range(name: str, token: list[int]) -> None:
    pattern = rf"0\.\.6.*{token[0]} to {token[1]}"
    refuses(Kind(name), lambda d, s: d.step(torch.tensor(token), s), ValueError, pattern)


def test_a_full_state_and_a_state_of_another_attention_are_refused(compiled: Kind) -> None:
    model = model_of().to(compiled.device)
    decoder = compiled.decoder(model)
    token = ints(2).to(compiled.device)
    _, full = decoder.prefill(compiled.tokens(model, 2, MAX_LENGTH - 1))
    with pytest.raises(ValueError, match="at most 9 positions"):
        decoder.step(token, full)
    _, short = decoder.prefill(token[:, None], max_length=2)
    with pytest.raises(ValueError, match="2 positions"):
        decoder.step(token, short)
    cache = tiny_model("softmax").float().to(compiled.device).prefill(token[:, None])[1]
    with pytest.raises(ValueError, match="KeyValueCache"):
        decoder.step(token, cache)


@needs_cpu_backend
def test_memory_that_was_freed_beneath_a_tensor_is_refused() -> None:
    """Native code would read what lies there now."""
    model = model_of()
    decoder = Kind("native").decoder(model)
    _, state = decoder.prefill(ints(2, 3))
    freed = ints(2)
    freed.untyped_storage().resize_(8)
    with pytest.raises(ValueError, match="tokens: expected memory for the shape"):
        decoder.native.step(freed, 4, state.layers, None)
    state.layers[1].s.untyped_storage().resize_(16)
    with pytest.raises(ValueError, match="state: expected memory for the shape"):
        decoder.step(ints(2), state)
    description, weight = model.describe(), torch.ones(model.config.embed_dim)
    weight.untyped_storage().resize_(4)
    description = replace(description, norm=replace(description.norm, weight=weight))
    with pytest.raises(ValueError, match="weights: expected memory for the shape"):
        compile_described(model, description, "float32", "cpu")


def test_states_of_negated_views_are_read_with_their_sign(compiled: Kind) -> None:
    model = tiny_model("linear").float().to(compiled.device)
    decoder = compiled.decoder(model)
    state = model.prefill(compiled.tokens(model, 2, 3))[1].detach()
    layers = [type(layer)(*(torch._neg_view(-x) for x in layer)) for layer in state.layers]
    negated = replace(state, layers=tuple(layers))
    fields: dict[str, Any] = {"max_new_tokens": 3, "seeds": 1}
    expected = model.generate(state=state, decoder="eager", **fields)
    assert torch.equal(decoder.generate(state=negated, **fields), expected)
    token = compiled.tokens(model, 2, 1)[:, 0]
    if compiled.name == "native":
        with pytest.raises(ValueError, match="negated view"):
            decoder.step(token, negated)
    else:
        close(decoder.step(token, negated)[0], decoder.step(token, state.clone())[0])
