"""The compiled decoder of this backend: every build of it, and what it refuses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import linattn_cpu
from linattn_core.decoder_spec import DecoderDescription
from linattn_cpu.decoder import CpuDecoder, refuses_decoder
from linattn_models import MixtureOfLogistics, compile_decoder
from tests.models.decoding.decoders import draw_alike
from tests.models.tiny import MAX_LENGTH, random_tokens, tiny_model

from .calls import built_for, torch_threads

# The largest error of each format of weights, for outputs of size 1.
ERRORS = {"float32": 1e-5, "bfloat16": 0.05, "int8": 0.1}


def model_of(head: Any = 7, **fields: Any):
    return tiny_model("linear", head, **fields).float()


def description() -> DecoderDescription:
    return model_of().describe()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("weights", ERRORS)
@pytest.mark.parametrize(("batch", "head_dim"), [(1, 16), (1, 33), (5, 5), (40, 16), (40, 33)])
@torch.no_grad()
def test_every_build_steps_as_the_model(
    instruction_set: str, weights: str, batch: int, head_dim: int
) -> None:
    model = model_of(MixtureOfLogistics(3), head_dim=head_dim, ffn_dim=3 * head_dim + 1)
    decoder = compile_decoder(model, weights, backend="cpu")
    assert decoder.native.instruction_set == instruction_set
    tokens = random_tokens(model, batch, MAX_LENGTH)
    found, state = decoder.prefill(tokens[:, :-2])
    torch.testing.assert_close(found, model(tokens[:, :-1])[:, -1], rtol=0, atol=ERRORS[weights])
    found, _ = decoder.step(tokens[:, -2], state)
    torch.testing.assert_close(found, model(tokens)[:, -1], rtol=0, atol=ERRORS[weights])


@pytest.mark.parametrize("weights", ERRORS)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("num_heads", "norm_first"), [(1, True), (5, False)])
@torch.no_grad()
def test_threads_share_one_sequence_by_heads(
    num_heads: int, norm_first: bool, threads: int, weights: str
) -> None:
    """Their heads may differ in number, and begin and end within a panel of the weights."""
    model = model_of(num_heads=num_heads, head_dim=5, ffn_dim=70, norm_first=norm_first)
    decoder = compile_decoder(model, weights, backend="cpu")
    tokens = random_tokens(model, 1, MAX_LENGTH)
    with torch_threads(threads):
        state = decoder.prefill(tokens[:, :0])[1]
        for token in tokens[:, :-1].unbind(1):
            found, state = decoder.step(token, state)
    torch.testing.assert_close(found, model(tokens)[:, -1], rtol=0, atol=ERRORS[weights])


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("batch", "head_dim"), [(3, 65), (17, 32), (100, 5), (100, 65)])
@torch.no_grad()
def test_many_rows_of_int8_are_what_a_few_are(
    instruction_set: str, batch: int, head_dim: int
) -> None:
    """Integers are summed exactly, in vectors and in tiles."""
    model = model_of(head_dim=head_dim, ffn_dim=3 * head_dim + 1)
    decoder = compile_decoder(model, "int8", backend="cpu")
    tokens = random_tokens(model, batch, 3)
    together, _ = decoder.prefill(tokens)
    few = [decoder.prefill(part)[0] for part in tokens.split(2)]
    torch.testing.assert_close(together, torch.cat(few), rtol=1e-6, atol=1e-6)


@pytest.mark.skipif("amx" not in linattn_cpu.instruction_sets(), reason="no AMX on this machine")
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("weights", "error"), [("bfloat16", 5e-3), ("int8", 1e-6)])
@pytest.mark.parametrize(("batch", "head_dim"), [(16, 32), (17, 5), (33, 65), (100, 32)])
@torch.no_grad()
def test_products_in_tiles_are_those_in_vectors(
    weights: str, error: float, batch: int, head_dim: int
) -> None:
    """Also beside rows with NaN, and where the inputs fill no whole number of tiles."""
    model = model_of(head_dim=head_dim, ffn_dim=3 * head_dim + 1)
    model.embeddings[0].weight[0] = float("nan")
    tokens = random_tokens(model, batch, 3)
    tokens[::2, 0] = 0
    tokens[1::2] = tokens[1::2].clamp(min=1)
    found = {}
    for name in ("amx", "avx512bf16"):
        with built_for(name):
            decoder = compile_decoder(model, weights, backend="cpu")
        assert decoder.native.instruction_set == name
        found[name], _ = decoder.prefill(tokens)
    ours, theirs = found.values()
    assert ours[::2].isnan().all() and ours[1::2].isfinite().all()
    torch.testing.assert_close(ours, theirs, rtol=error, atol=error, equal_nan=True)


@torch.no_grad()
def test_a_decoder_keeps_the_build_it_was_packed_for(instruction_set: str) -> None:
    model = model_of()
    decoder = compile_decoder(model)
    tokens = random_tokens(model, 2, 5)
    linattn_cpu.use_instruction_set("baseline")
    found, _ = decoder.prefill(tokens[:, :-1])
    assert decoder.native.instruction_set == instruction_set
    torch.testing.assert_close(found, model(tokens)[:, -1])


@torch.no_grad()
def test_sampled_tokens_are_those_of_the_head_on_every_build(instruction_set: str) -> None:
    for head in (7, MixtureOfLogistics(3), MixtureOfLogistics(2, 3, 9)):
        model = model_of(head)
        decoder = compile_decoder(model)
        tokens = random_tokens(model, 200, 2)
        _, state = decoder.prefill(tokens[:, :1])
        ours, theirs = draw_alike(model.head, 200, seed=1)
        parameters, drawn, _ = decoder.steps_and_draws(tokens[:, 1], state, ours, 1)
        expected = theirs.draw(model.head, parameters[0])
        assert (drawn[0] == expected).float().mean() > 0.995  # rounding decides between a few


def test_models_and_weights_that_it_does_not_know_are_refused() -> None:
    good = description()
    assert refuses_decoder(good, "int8") is None
    assert "int4" in str(refuses_decoder(good, "int4"))
    double = dataclasses.replace(good.norm, bias=good.norm.bias.double())
    for change, named in (
        ({"feature_map": "favor"}, "favor"),
        ({"activation": "tanh"}, "tanh"),
        ({"norm": double}, "float64"),
    ):
        assert named in str(refuses_decoder(dataclasses.replace(good, **change), "float32"))


def test_positions_and_states_that_do_not_fit_are_refused() -> None:
    decoder = CpuDecoder(description(), "float32")
    _, state = compile_decoder(model_of()).prefill(torch.zeros(2, 1, dtype=torch.int64))
    token = torch.zeros(2, dtype=torch.int64)
    for position in (torch.tensor([3, -1]), MAX_LENGTH):
        with pytest.raises(ValueError, match="position"):
            decoder.step(token, position, state.layers, None)
    layers = [layer._replace(s=layer.s.transpose(2, 3)) for layer in state.layers]
    with pytest.raises(ValueError, match="contiguous"):
        decoder.check(layers)


def test_an_infinite_weight_reaches_the_output(instruction_set: str) -> None:
    for weights in ERRORS:
        model = model_of()
        with torch.no_grad():
            model.output.weight[2, 0] = float("inf")
        found, _ = compile_decoder(model, weights).prefill(torch.zeros(3, 2, dtype=torch.int64))
        assert not found[:, 2].isfinite().any()
        assert found[:, [0, 1, 3, 4, 5, 6]].isfinite().all()


@pytest.mark.parametrize("batch", [1, 40])
@torch.no_grad()
def test_int8_sums_do_not_overflow(instruction_set: str, batch: int) -> None:
    """700 equal activations and weights: as 16 and 8 bits, their products' sum exceeds 31 bits."""
    model = model_of(ffn_dim=700)
    for layer in model.describe().layers:
        layer.expand.weight.zero_(), layer.expand.bias.fill_(1.0)
        layer.contract.weight[:, ::2], layer.contract.weight[:, 1::2] = 0.01, -0.01
    tokens = random_tokens(model, batch, 4)
    found, _ = compile_decoder(model, "int8", backend="cpu").prefill(tokens[:, :-1])
    expected = model(tokens[:, :-1])[:, -1]
    torch.testing.assert_close(found, expected, rtol=0, atol=ERRORS["int8"])


@pytest.mark.parametrize("batch", [1, 3, 150])
@torch.no_grad()
def test_more_threads_than_cores_give_the_same_bits(batch: int) -> None:
    model = model_of(head_dim=24)
    decoder = compile_decoder(model, backend="cpu")
    tokens = random_tokens(model, batch, 5)
    outputs = []
    for threads in (1, 2, 8, 64):
        with torch_threads(threads):
            outputs.append(decoder.prefill(tokens)[0])
    assert all(torch.equal(other, outputs[0]) for other in outputs)
