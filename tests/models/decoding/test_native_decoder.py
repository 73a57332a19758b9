"""Native decoders: threads, weights in fewer bits, and the models that they refuse.

What they share with other decoders is in test_decoder_contract.py, _draws.py and _refusals.py.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from linattn_core.decoder_spec import CannotCompile
from linattn_models import (
    AutoregressiveTransformer,
    Categorical,
    Head,
    MixtureOfLogistics,
    Transformer,
    compile_decoder,
)
from linattn_models.decoding.compiled import compile_described
from linattn_models.decoding.graph import EagerRecorder
from tests.models.decoding.decoders import (
    close,
    forced,
    model_of,
    same_state,
    sized,
    worst,
)
from tests.models.tiny import MAX_LENGTH, random_tokens, tiny_config, tiny_model

pytest.importorskip("linattn_cpu", reason="the backend that compiles decoders is not installed")


@given(
    batch=st.sampled_from([1, 3, 40, 130, 300]),
    longest=st.sampled_from([0, 1, 5, 140]),
    threads=st.integers(1, 3),
    norm_first=st.booleans(),
    weights=st.sampled_from(["float32", "int8"]),
    seed=st.integers(0, 999),
)
@settings(max_examples=20)
@torch.no_grad()
def test_rows_of_any_lengths_are_packed_into_blocks(
    batch: int, longest: int, threads: int, norm_first: bool, weights: str, seed: int
) -> None:
    torch.manual_seed(seed)
    model = AutoregressiveTransformer(tiny_config(norm_first=norm_first), 7, 150).eval()
    nn.init.normal_(model.output.weight, std=0.5)
    tokens, lengths = random_tokens(model, batch, longest), torch.randint(longest + 1, (batch,))
    torch.set_num_threads(threads)
    actual, ours = compile_decoder(model, weights).prefill(tokens, lengths)
    expected, theirs = model.prefill(tokens, lengths)
    if weights == "float32":
        close(actual, expected)
        same_state(ours, theirs)
    else:
        assert worst(actual, expected) < 0.1


# Weights in fewer bits


def levels(weight: Tensor) -> Tensor:
    """Each output's weights (outputs, inputs) as multiples of 1/127 of the largest."""
    largest = weight.abs().amax(1, keepdim=True)
    return (weight / largest * 127).round() / 127 * largest


@pytest.mark.parametrize(
    ("weights", "grid", "error"),
    [
        ("bfloat16", lambda weight: weight.bfloat16().float(), 1e-5),
        ("int8", levels, 2e-3),  # activations have 16 bits
    ],
)
@pytest.mark.parametrize("fields", [{}, {"decay": "gated", "window_size": 3}], ids=str)
@torch.no_grad()
def test_weights_that_fewer_bits_can_hold_are_exact(
    weights: str, grid: Any, error: float, fields: dict[str, Any]
) -> None:
    model = model_of(**fields)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.copy_(grid(layer.weight))
    tokens = random_tokens(model, 3, MAX_LENGTH)
    actual = forced(compile_decoder(model, weights), tokens)
    torch.testing.assert_close(actual, model(tokens), rtol=error, atol=error)


@pytest.mark.parametrize("recorder", [None, EagerRecorder()], ids=["native", "torch"])
@torch.no_grad()
def test_gelu_approximated_by_tanh(recorder: EagerRecorder | None) -> None:
    model = model_of()
    for block in model.transformer.blocks:
        block.expand.weight.mul_(10)
    described = replace(model.describe(), activation="gelu_tanh")
    decoder = compile_described(model, described, "float32", "auto", recorder)
    tokens = random_tokens(model, 3, MAX_LENGTH)
    exact = model(tokens)
    for block in model.transformer.blocks:
        block.activation = partial(F.gelu, approximate="tanh")
    close(forced(decoder, tokens), model(tokens))
    assert worst(exact, model(tokens)) > 1e-4


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("batch", [2, 40])
@torch.no_grad()
def test_nan_stays_in_its_row(weights: str, batch: int) -> None:
    model = Transformer(tiny_config(**sized((2, 24, 40)))).eval()
    decoder = compile_decoder(model, weights)
    x = torch.randn(batch, 3, 48)
    clean, _ = decoder.prefill(x)
    for poison in (float("nan"), float("inf")):
        x[1, 1, 0] = poison
        actual, _ = decoder.prefill(x)
        assert actual[1, 1:].isnan().all()
        assert torch.equal(actual[0], clean[0]) and torch.equal(actual[1, 0], clean[1, 0])
        assert torch.equal(actual[2:], clean[2:])


# Refusals


def hooked() -> AutoregressiveTransformer:
    model = model_of()
    model.transformer.blocks[1].expand.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]
    return model


def widened() -> AutoregressiveTransformer:
    """Runs eagerly, and would be read past its ends if sizes were taken from the first layer."""
    model = model_of()
    block = model.transformer.blocks[1]
    block.expand, block.contract = nn.Linear(8, 200), nn.Linear(200, 8)  # type: ignore[union-attr]
    return model


def narrowed() -> AutoregressiveTransformer:
    model = model_of()
    model.output = nn.Linear(8, 3)
    return model


def renormalizing() -> AutoregressiveTransformer:
    model = model_of()
    model.embeddings[0].max_norm = 1.0  # type: ignore[union-attr]
    return model


def reconfigured() -> AutoregressiveTransformer:
    model = model_of()
    model.transformer.blocks[1].mixer.eps = 0.5  # type: ignore[union-attr]
    return model


def replaced() -> AutoregressiveTransformer:
    model = model_of()
    model.output = nn.Sequential(model.output)  # type: ignore[assignment]
    return model


class Changed(AutoregressiveTransformer):
    """A subclass, which may do anything differently."""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: tiny_model("softmax").float(), "linear attention"),
        (lambda: model_of(feature_map="favor"), "Favor"),
        (tiny_model, "expected float32 on the CPU or a CUDA GPU, got torch.float64"),
        (lambda: model_of().to(torch.bfloat16), "got torch.bfloat16 on cpu"),
        (lambda: model_of().to("meta"), "got torch.float32 on meta"),
        (hooked, "a Linear: expected no hooks"),
        (replaced, "expected a Linear, got torch.nn.modules.container.Sequential"),
        (
            lambda: Changed(tiny_config(), 7, 5),
            "Changed; a compiled decoder does not know its arithmetic",
        ),
        (widened, "a layer's expand weight: expected shape (8, 12), got (8, 200)"),
        (narrowed, "the output weight: expected shape (8, 7), got (8, 3)"),
        (renormalizing, "an embedding: expected no max_norm, got 1.0"),
        (reconfigured, "the settings of a block"),
    ],
)
def test_refuses_models_that_it_does_not_know(make: Any, said: str) -> None:
    model = make()
    with pytest.raises(CannotCompile, match=re.escape(said)):
        compile_decoder(model)
    with pytest.raises(ValueError, match=re.escape(said)):
        model.eval().generate(decoder="compiled")


def test_a_bare_transformer_that_is_not_causal_is_refused() -> None:
    with pytest.raises(CannotCompile, match="is_causal"):
        compile_decoder(Transformer(tiny_config(is_causal=False)))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"decoder": "compile"}, "'compiled', or what compile_decoder made, got 'compile'"),
        ({"decoder": "compiled", "method": "rerun"}, "takes no decoder"),
    ],
)
def test_generate_refuses_decoders_that_it_cannot_take(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        model_of().generate(**fields)


def test_unknown_weights_and_backends_are_refused() -> None:
    model = model_of()
    with pytest.raises(ValueError, match="did you mean 'int8'"):
        compile_decoder(model, "int4")
    with pytest.raises(ValueError, match="'gpu'"):
        compile_decoder(model, backend="gpu")
    with pytest.raises(CannotCompile, match=r"'reference'.* compiles no decoders"):
        compile_decoder(model, backend="reference")


def test_hooks_on_all_modules_are_hooks_too() -> None:
    model = model_of()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.raises(CannotCompile, match="expected no hooks"):
            compile_decoder(model)
    finally:
        handle.remove()


def test_refuses_what_is_no_model() -> None:
    with pytest.raises(TypeError, match=r"expected an AutoregressiveTransformer .* got a Linear"):
        compile_decoder(nn.Linear(2, 2))  # type: ignore[call-overload]


@pytest.mark.parametrize("head", [Categorical(5), MixtureOfLogistics(2, 1, 17)], ids=str)
def test_a_decoder_of_another_model_is_refused(head: Head) -> None:
    decoder = compile_decoder(model_of(7))
    for call in (lambda m: m.generate(decoder=decoder), lambda m: m.stream(decoder=decoder)):
        with pytest.raises(ValueError, match="expected one compiled from a model with head"):
            call(model_of(head))
    with pytest.raises(ValueError, match="expected one compiled from a model with config"):
        model_of(7, num_layers=3).generate(decoder=decoder)


def test_int8_sums_that_could_overflow_are_refused() -> None:
    model = model_of(num_heads=1, head_dim=1, ffn_dim=65_537)
    with pytest.raises(CannotCompile, match="at most 65,536 inputs exactly"):
        compile_decoder(model, weights="int8")
    tokens = random_tokens(model, 2, MAX_LENGTH)
    close(forced(compile_decoder(model), tokens), model(tokens))
