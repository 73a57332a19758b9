"""A compiled decoder is the model: the same numbers, the same states, the same tokens."""

from __future__ import annotations

import copy
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from linattn_core.decoding import CannotCompile
from linattn_models import (
    AutoregressiveTransformer,
    Categorical,
    CompiledDecoder,
    Head,
    MixtureOfLogistics,
    Transformer,
    compile_decoder,
    generation_throughput,
)
from tests.models.decoders import (
    HEAD_NAMES,
    HEADS,
    LONG,
    Halves,
    close,
    forced,
    long_model,
    model_of,
    same_state,
    sized,
    worst,
)
from tests.models.tiny import MAX_LENGTH, random_tokens, seeded, tiny_config, tiny_model

pytest.importorskip("linattn_cpu", reason="the backend that compiles decoders is not installed")

heads = pytest.mark.parametrize("head", HEADS, ids=HEAD_NAMES)
# Widths below a vector, between two and of whole panels, of each instruction set.
SIZES = [(1, 1, 1), (3, 5, 7), (2, 24, 40), (2, 32, 64)]
sizes = pytest.mark.parametrize("size", SIZES, ids=str)


@heads
@sizes
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@torch.no_grad()
def test_steps_equal_the_whole_sequence(
    head: Head, size: tuple[int, int, int], norm: str, activation: str
) -> None:
    model = model_of(head, **sized(size, norm=norm, activation=activation))
    tokens = random_tokens(model, 3, MAX_LENGTH)
    close(forced(compile_decoder(model), tokens), model(tokens))


@pytest.mark.parametrize("batch", [1, 2, 17, 100, 300])
@pytest.mark.parametrize("threads", [1, 2, 3])
@torch.no_grad()
def test_any_batch_on_any_number_of_threads(batch: int, threads: int) -> None:
    model = model_of(**sized((3, 5, 7)))
    tokens = random_tokens(model, batch, 4)
    expected = model(tokens)
    torch.set_num_threads(threads)
    close(forced(compile_decoder(model), tokens), expected)


@pytest.mark.parametrize("feature_map", ["elu", "relu", "identity"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@torch.no_grad()
def test_maps_and_positions(feature_map: str, positions: str) -> None:
    # With the identity, denominators of either sign come near 0: eps keeps the comparison sane.
    eps = 100.0 if feature_map == "identity" else 1e-6
    model = model_of(positions=positions, feature_map=feature_map, eps=eps)
    tokens = random_tokens(model, 3, MAX_LENGTH)
    close(forced(compile_decoder(model), tokens), model(tokens))


@heads
@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4), steps=st.integers(0, 3))
@torch.no_grad()
def test_prefill_of_any_lengths_and_steps_after_it(
    head: Head, lengths: list[int], steps: int
) -> None:
    model = model_of(head)
    decoder = compile_decoder(model)
    tokens = random_tokens(model, len(lengths), 5)
    own = torch.tensor(lengths, dtype=torch.int32)
    found, ours = decoder.prefill(tokens, own)
    expected, theirs = model.prefill(tokens, own)
    for _ in range(steps):
        close(found, expected)
        token = random_tokens(model, len(lengths), 1)[:, 0]
        found, ours = decoder.step(token, ours)
        expected, theirs = model.step(token, theirs)
    close(found, expected)
    same_state(ours, theirs)


@torch.no_grad()
def test_prefill_over_many_blocks_of_rows() -> None:
    model = AutoregressiveTransformer(tiny_config(), 7, 300).eval()
    tokens = random_tokens(model, 2, 299)
    found, ours = compile_decoder(model).prefill(tokens, torch.tensor([299, 130]))
    expected, theirs = model.prefill(tokens, torch.tensor([299, 130]))
    close(found, expected)
    same_state(ours, theirs)


@torch.no_grad()
def test_either_takes_over_from_the_other() -> None:
    model = model_of()
    decoder = compile_decoder(model)
    tokens = random_tokens(model, 3, MAX_LENGTH)
    for first, second in ((model, decoder), (decoder, model)):
        _, state = first.prefill(tokens[:, :2])
        _, state = first.step(tokens[:, 2], state)
        state = state.index_select(torch.tensor([2, 0, 0, 1]))  # reordered and forked
        followed = tokens[[2, 0, 0, 1]]
        for position in range(3, MAX_LENGTH - 1):
            parameters, state = second.step(followed[:, position], state)
        close(parameters, model(followed)[:, -1])


@torch.no_grad()
def test_a_step_updates_the_state_it_is_given() -> None:
    model = model_of()
    decoder = compile_decoder(model)
    _, state = decoder.prefill(random_tokens(model, 2, 3))
    kept = state.clone()
    token = random_tokens(model, 2, 1)[:, 0]
    first, after = decoder.step(token, state)
    assert after.layers[0].s is state.layers[0].s
    assert not torch.equal(state.layers[0].s, kept.layers[0].s)
    again, _ = decoder.step(token, kept)
    assert torch.equal(first, again)


def test_weights_changed_later_do_not_reach_the_decoder() -> None:
    model = model_of()
    decoder = compile_decoder(model)
    tokens = random_tokens(model, 2, 5)
    before, _ = decoder.prefill(tokens)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    after, _ = decoder.prefill(tokens)
    assert torch.equal(before, after)


def test_what_comes_out_has_no_gradient() -> None:
    model = model_of()
    parameters, state = compile_decoder(model).prefill(random_tokens(model, 2, 3))
    assert not parameters.requires_grad and not state.layers[0].s.requires_grad


@pytest.mark.parametrize("lengths", [None, [4, 0, 2]])
@torch.no_grad()
def test_a_bare_transformer(lengths: list[int] | None) -> None:
    model = Transformer(tiny_config(**sized((3, 5, 7)))).eval()
    decoder = compile_decoder(model)
    own = None if lengths is None else torch.tensor(lengths)
    x = torch.randn(3, 5, 15)
    found, ours = decoder.prefill(x[:, :4], own)
    expected, theirs = model.prefill(x[:, :4], own)
    for row in range(3):
        real = 4 if lengths is None else lengths[row]
        close(found[row, :real], expected[row, :real])
    found, ours = decoder.step(x[:, 4], ours)
    expected, theirs = model.step(x[:, 4], theirs)
    close(found, expected)
    same_state(ours, theirs)
    start = decoder.initial_state(3)
    close(decoder.step(x[:, 0], start)[0], model(x[:, :1])[:, 0])


# Drawing


@heads
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("batch", [1, 5])
def test_the_same_seed_draws_the_models_own_tokens(
    head: Head, temperature: float, batch: int
) -> None:
    model = long_model(head)
    decoder = compile_decoder(model)
    fields: dict[str, Any] = {"temperature": temperature}
    eager, compiled, auto = (
        model.generate(batch, generator=seeded(), decoder=which, **fields)
        for which in ("eager", decoder, "auto")
    )
    assert torch.equal(compiled, eager) and torch.equal(auto, eager)
    assert torch.equal(decoder.generate(batch, generator=seeded(), **fields), eager)
    streamed = torch.stack(list(decoder.stream(batch, generator=seeded(), **fields)), 1)
    assert torch.equal(streamed, eager)


@heads
def test_forced_prefixes_of_different_lengths(head: Head) -> None:
    model = long_model(head)
    prefix = random_tokens(model, 3, 6)
    fields: dict[str, Any] = {"prefix": prefix, "prefix_lengths": torch.tensor([6, 0, 3])}
    eager = model.generate(**fields, generator=seeded(), decoder="eager")
    assert torch.equal(model.generate(**fields, generator=seeded(), decoder="compiled"), eager)


@heads
@pytest.mark.parametrize("temperature", [0.0, 1.3])
@torch.no_grad()
def test_a_step_that_samples_is_a_step_and_a_sample(head: Head, temperature: float) -> None:
    model = model_of(head)
    decoder = compile_decoder(model)
    tokens = random_tokens(model, 40, 4)
    _, state = decoder.prefill(tokens[:, :3])
    parameters, drawn, after = decoder.step_and_sample(
        tokens[:, 3], state.clone(), temperature=temperature, generator=seeded()
    )
    alone, _ = decoder.step(tokens[:, 3], state)
    assert torch.equal(parameters, alone)
    expected = model.head.sample(alone, temperature=temperature, generator=seeded())
    assert torch.equal(drawn, expected) and drawn.dtype == torch.int64
    assert after.position == 5


def test_a_head_of_ones_own_samples_for_itself() -> None:
    model = AutoregressiveTransformer(tiny_config(), Halves(), LONG).eval()  # type: ignore[arg-type]
    eager = model.generate(3, decoder="eager")
    assert torch.equal(model.generate(3, decoder="compiled"), eager)


def test_throughput_of_a_compiled_decoder() -> None:
    model = long_model()
    for steps in (None, 3):
        for decoder in ("auto", "eager", compile_decoder(model)):
            found = generation_throughput(model, batch=2, decoder=decoder, steps=steps)
            assert found.samples_per_second > 0 and found.state_bytes_per_sample > 0


def test_two_threads_at_once() -> None:
    torch.set_num_threads(2)
    model = model_of(**sized((2, 32, 64)))
    decoder = compile_decoder(model)
    given_tokens = [random_tokens(model, batch, MAX_LENGTH) for batch in (1, 5, 1, 5)]
    with torch.no_grad():
        expected = [model(tokens) for tokens in given_tokens]

    def run(tokens: Tensor) -> list[Tensor]:
        return [forced(decoder, tokens) for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        for found, right in zip(pool.map(run, given_tokens), expected, strict=True):
            for one in found:
                close(one, right)


# Weights in fewer bits


@pytest.mark.parametrize(("weights", "bound"), [("bfloat16", 0.05), ("int8", 0.1)])
@pytest.mark.parametrize("batch", [1, 3, 40])
@pytest.mark.parametrize("size", SIZES[1:], ids=str)  # a LayerNorm over one number leaves nothing
@torch.no_grad()
def test_fewer_bits_stay_near(
    weights: str, bound: float, batch: int, size: tuple[int, int, int]
) -> None:
    model = model_of(**sized(size))
    tokens = random_tokens(model, batch, MAX_LENGTH)
    expected = model(tokens)
    exact = worst(forced(compile_decoder(model), tokens), expected)
    fewer = worst(forced(compile_decoder(model, weights), tokens), expected)
    assert exact < fewer < bound


def levels(weight: Tensor) -> Tensor:
    """Each output's weights (outputs, inputs) as multiples of 1/127 of the largest."""
    largest = weight.abs().amax(1, keepdim=True)
    return (weight / largest * 127).round() / 127 * largest


@pytest.mark.parametrize(
    ("weights", "grid", "error"),
    [
        ("bfloat16", lambda weight: weight.bfloat16().float(), 1e-5),
        ("int8", levels, 2e-3),  # activations of 16 bits are all that is left between them
    ],
)
@torch.no_grad()
def test_weights_that_fewer_bits_can_hold_are_kept_as_they_are(
    weights: str, grid: Any, error: float
) -> None:
    model = model_of()
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.copy_(grid(layer.weight))
    tokens = random_tokens(model, 3, MAX_LENGTH)
    found = forced(compile_decoder(model, weights), tokens)
    torch.testing.assert_close(found, model(tokens), rtol=error, atol=error)


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("batch", [2, 40])
@torch.no_grad()
def test_what_is_no_number_stays_in_its_row(weights: str, batch: int) -> None:
    model = Transformer(tiny_config(**sized((2, 24, 40)))).eval()
    decoder = compile_decoder(model, weights)
    x = torch.randn(batch, 3, 48)
    clean, _ = decoder.prefill(x)
    for poison in (float("nan"), float("inf")):
        x[1, 1, 0] = poison
        found, _ = decoder.prefill(x)
        assert found[1, 1:].isnan().all()
        assert torch.equal(found[0], clean[0]) and torch.equal(found[1, 0], clean[1, 0])
        assert torch.equal(found[2:], clean[2:])


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
    """A model of one's own, whatever it does differently."""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: tiny_model("softmax").float(), "only causal linear attention"),
        (lambda: model_of(feature_map="favor"), "Favor is not of each number alone"),
        (tiny_model, "expected in float32 on the CPU or a CUDA GPU and is torch.float64"),
        (lambda: model_of().to(torch.bfloat16), "is torch.bfloat16 on cpu"),
        (lambda: model_of().to("meta"), "is torch.float32 on meta"),
        (hooked, "a Linear has hooks"),
        (replaced, "a Linear was expected and a torch.nn.modules.container.Sequential is in its"),
        (lambda: Changed(tiny_config(), 7, 5), "Changed is in its place"),
        (widened, "a layer's expand weight was expected to have shape (8, 12)"),
        (narrowed, "the output weight was expected to have shape (8, 7)"),
        (renormalizing, "max_norm=1.0"),
        (reconfigured, "the settings of a block"),
    ],
)
def test_refuses_models_that_it_does_not_know(make: Any, said: str) -> None:
    model = make()
    with pytest.raises(CannotCompile, match=re.escape(said)):
        compile_decoder(model)
    with pytest.raises(ValueError, match=re.escape(said)):
        model.eval().generate(decoder="compiled")


def test_auto_goes_on_eagerly_where_nothing_compiles() -> None:
    model = hooked()
    assert torch.equal(
        model.generate(2, generator=seeded()),
        model.generate(2, generator=seeded(), decoder="eager"),
    )


def test_a_bare_transformer_that_is_not_causal_is_refused() -> None:
    with pytest.raises(CannotCompile, match="is_causal=False"):
        compile_decoder(Transformer(tiny_config(is_causal=False)))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"decoder": "compile"}, "did you mean 'compiled'?"),
        ({"decoder": "compiled", "method": "rerun"}, "takes no decoder"),
    ],
)
def test_generation_refuses(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        model_of().generate(**fields)


def test_dropout_in_training_mode_refuses_generation_and_leaves_decoders_alone() -> None:
    model = model_of(dropout=0.5).train()
    decoder = compile_decoder(model)
    with pytest.raises(ValueError, match=re.escape("call model.eval() first")):
        model.generate(decoder=decoder)
    tokens = random_tokens(model, 2, 4)
    found = forced(decoder, tokens)
    close(found, model.eval()(tokens).detach())


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda d, s: d.step(torch.zeros(2, 1, dtype=torch.int64), s), ValueError, "(2, 1)"),
        (lambda d, s: d.step(torch.zeros(2), s), TypeError, "int64 and are torch.float32"),
        (lambda d, s: d.step(torch.zeros(3, dtype=torch.int64), s), ValueError, "inputs for 3"),
        (lambda d, s: d.step(torch.tensor([1, 7]), s), ValueError, "0..6 and reach from 1 to 7"),
        (lambda d, s: d.step(torch.tensor([-1, 0]), s), ValueError, "reach from -1 to 0"),
        (lambda d, s: d.step(torch.tensor([0, 0]), s.to(torch.float64)), ValueError, "float64"),
        (lambda d, s: d.prefill(torch.zeros(2, 9, dtype=torch.int64)), ValueError, "9 long"),
        (lambda d, s: d.prefill(torch.zeros(2, 3)), TypeError, "must be int64"),
        (
            lambda d, s: d.prefill(torch.zeros(2, 3, dtype=torch.int64), torch.tensor([0, 4])),
            ValueError,
            "lengths: expected lengths in 0..3",
        ),
        (
            lambda d, s: d.step_and_sample(torch.tensor([0, 0]), s, temperature=-1.0),
            ValueError,
            "temperature: expected",
        ),
        (lambda d, s: d.generate(method="rerun"), ValueError, "draws by its own steps"),
        (lambda d, s: d.generate(decoder="eager"), ValueError, "decoder='eager'"),
    ],
)
def test_a_decoder_refuses(call: Any, error: type[Exception], said: str) -> None:
    decoder = compile_decoder(model_of())
    _, state = decoder.prefill(torch.zeros(2, 3, dtype=torch.int64))
    before = state.clone()
    with pytest.raises(error, match=re.escape(said)):
        call(decoder, state)
    assert torch.equal(state.layers[0].s, before.layers[0].s)


def test_a_full_state_and_a_state_of_another_model_are_refused() -> None:
    model = model_of()
    decoder = compile_decoder(model)
    token = torch.zeros(2, dtype=torch.int64)
    _, full = decoder.prefill(random_tokens(model, 2, MAX_LENGTH - 1))
    with pytest.raises(ValueError, match="expected a position below 9"):
        decoder.step(token, full)
    _, short = decoder.prefill(token[:, None], max_length=2)
    with pytest.raises(ValueError, match="room for 2 positions"):
        decoder.step(token, short)
    _, deep = compile_decoder(model_of(num_layers=3)).prefill(token[:, None])
    with pytest.raises(ValueError, match="has 3 layers and the decoder 2"):
        decoder.step(token, deep)
    _, wide = compile_decoder(model_of(num_heads=3)).prefill(token[:, None])
    with pytest.raises(ValueError, match=re.escape("expected to have s (2, 2, 4, 4)")):
        decoder.step(token, wide)
    cache = tiny_model("softmax").float().prefill(token[:, None])[1]
    with pytest.raises(TypeError, match="KeyValueCache"):
        decoder.step(token, cache)


def test_unknown_weights_and_backends_are_refused() -> None:
    model = model_of()
    with pytest.raises(ValueError, match="did you mean 'int8'"):
        compile_decoder(model, "int4")
    with pytest.raises(ValueError, match="Unknown backend 'gpu'"):
        compile_decoder(model, backend="gpu")
    with pytest.raises(CannotCompile, match="backend 'reference': it compiles no decoders"):
        compile_decoder(model, backend="reference")


def test_nothing_to_decode() -> None:
    decoder = compile_decoder(model_of())
    parameters, state = decoder.prefill(torch.zeros(0, 3, dtype=torch.int64))
    assert parameters.shape == (0, 7)
    parameters, _ = decoder.step(torch.zeros(0, dtype=torch.int64), state)
    assert parameters.shape == (0, 7)


def test_a_decoder_knows_what_it_is() -> None:
    decoder = compile_decoder(model_of(), "int8")
    assert isinstance(decoder, CompiledDecoder) and decoder.weights == "int8"
    assert decoder.native.nbytes < compile_decoder(model_of()).native.nbytes


def test_hooks_on_all_modules_are_hooks_too() -> None:
    model = model_of()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.raises(CannotCompile, match="has hooks"):
            compile_decoder(model)
    finally:
        handle.remove()


def test_refuses_what_is_no_model() -> None:
    with pytest.raises(TypeError, match=r"takes an AutoregressiveTransformer .* got a Linear"):
        compile_decoder(nn.Linear(2, 2))  # type: ignore[call-overload]


@pytest.mark.parametrize("head", [Categorical(5), MixtureOfLogistics(2, 1, 17)], ids=str)
def test_a_decoder_of_another_model_is_refused(head: Head) -> None:
    decoder = compile_decoder(model_of(7))
    for call in (lambda m: m.generate(decoder=decoder), lambda m: m.stream(decoder=decoder)):
        with pytest.raises(ValueError, match="compiled from a model with head"):
            call(model_of(head))
    with pytest.raises(ValueError, match="compiled from a model with config"):
        model_of(7, num_layers=3).generate(decoder=decoder)


def test_int8_sums_that_could_overflow_are_refused() -> None:
    model = model_of(num_heads=1, head_dim=1, ffn_dim=65_537)
    with pytest.raises(CannotCompile, match="at most 65,536 inputs exactly"):
        compile_decoder(model, weights="int8")
    tokens = random_tokens(model, 2, MAX_LENGTH)
    close(forced(compile_decoder(model), tokens), model(tokens))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_defaults_of_torch_change_nothing(dtype: torch.dtype) -> None:
    model = model_of()
    decoder, tokens = compile_decoder(model), random_tokens(model, 5, MAX_LENGTH)
    expected = forced(decoder, tokens)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            found = forced(decoder, tokens)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(found, expected)


def test_tokens_of_another_shape_or_device_are_refused() -> None:
    decoder = compile_decoder(model_of(MixtureOfLogistics(2, 3, 8)))
    _, state = decoder.prefill(torch.zeros(4, 0, 3, dtype=torch.int64))
    for wrong in ((4, 1), (4, 5), (4,)):
        with pytest.raises(ValueError, match="tokens of shape"):
            decoder.step(torch.zeros(wrong, dtype=torch.int64), state)
    with pytest.raises(ValueError, match="tokens on the CPU and got some on meta"):
        decoder.step(torch.zeros(4, 3, dtype=torch.int64, device="meta"), state)
    with pytest.raises(ValueError, match="tokens on the CPU and got some on meta"):
        decoder.prefill(torch.zeros(4, 0, 3, dtype=torch.int64, device="meta"))


def test_it_says_what_it_is_and_is_not_copied() -> None:
    decoder = compile_decoder(model_of(), weights="int8")
    assert re.fullmatch(r"CompiledDecoder\(int8 weights, [\d,]+ bytes, \w+\)", repr(decoder))
    with pytest.raises(TypeError, match="compile it where it is used"):
        copy.deepcopy(decoder)


def test_autograd_notices_that_a_step_updated_the_state() -> None:
    model = model_of()
    tokens = random_tokens(model, 2, MAX_LENGTH)
    parameters, state = model.prefill(tokens[:, :1])
    parameters, state = model.step(tokens[:, 1], state)
    compile_decoder(model).step(tokens[:, 2], state.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        parameters.sum().backward()
