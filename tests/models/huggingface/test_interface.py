"""attn_implementation="linattn" in models that dispatch attention by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs the extra [transformers]")

from transformers import (
    AttentionInterface,
    BartForConditionalGeneration,
    BloomConfig,
    BloomForCausalLM,
    MistralForCausalLM,
    MptConfig,
    MptForCausalLM,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from linattn_core import get_feature_map, linear_attention
from linattn_core.reference import quadratic
from linattn_models.attention.decay import Decay
from linattn_models.huggingface import convert, interface, register
from linattn_models.huggingface.decays import log_decay
from tests.models.huggingface import tiny

ROWS = [tiny.tokens(1, length, seed=length)[0] for length in (7, 3, 5)]


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    register()


def linear(kind: str, **fields: Any) -> Any:
    model = tiny.MODELS[kind](**fields)
    model.set_attn_implementation("linattn")
    return model


def logits_of_rows(model: Any, side: str) -> list[Tensor]:
    """Each row's own logits, (length, V), out of a padded batch."""
    logits = model(**tiny.padded(ROWS, side)).logits
    longest = logits.shape[1]
    return [x[tiny.real(row, longest, side)] for row, x in zip(ROWS, logits, strict=True)]


def gradients(model: Any, logits: list[Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    sum(x.square().sum() for x in logits).backward()
    return {n: x.grad.clone() for n, x in model.named_parameters() if x.grad is not None}


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_exact(kind: str, side: str) -> None:
    model = linear(kind)
    alone = [model(input_ids=row[None]).logits[0] for row in ROWS]
    wanted = gradients(model, alone)

    batched = logits_of_rows(model, side)
    got = gradients(model, batched)

    torch.testing.assert_close(batched, alone, rtol=1e-9, atol=1e-9)
    assert wanted.keys() == got.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-8, atol=1e-8, msg=name)


DECAYS = ["fixed", 0.9, [0.5, 1.0]]
FACTORS = {"fixed": [1 - 2**-5, 1 - 2**-6], 0.9: [0.9, 0.9]}


@pytest.mark.parametrize(
    ("kind", "decay"), [*((x, None) for x in tiny.MODELS), *(("llama", x) for x in DECAYS)], ids=str
)
def test_every_layer_computes_the_definition(
    kind: str, decay: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[tuple[Tensor, Tensor, Tensor], Tensor]] = []

    def recorded(*tensors: Tensor, **arguments: Any) -> Tensor:
        out = linear_attention(*tensors, **arguments)
        calls.append((tensors, out))
        return out

    monkeypatch.setattr(interface, "linear_attention", recorded)
    register("linattn-decay", decay=decay)
    model = tiny.MODELS[kind]()
    model.set_attn_implementation("linattn-decay")
    model(input_ids=tiny.tokens(2, 6))

    factors = decay if isinstance(decay, list) else FACTORS.get(decay)
    decays = None if factors is None else torch.tensor(factors).double().log()
    tolerance = 1e-9 if decay is None else 1e-6  # decay is computed in float32
    assert len(calls) == 2
    for tensors, out in calls:
        wanted = quadratic(*tensors, is_causal=kind != "bert", enable_gqa=True, log_decay=decays)
        torch.testing.assert_close(out, wanted, rtol=tolerance, atol=tolerance)


def test_a_causal_model_that_is_told_not_to_be_sees_all() -> None:
    model = linear("llama")
    ids = tiny.tokens(1, 6)
    model.config.is_causal = False

    first = model(ids).logits[0, 0]
    ids[0, -1] += 1
    changed = model(ids).logits[0, 0]

    assert not torch.allclose(first, changed)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("gpt2", {}), ("gpt2", {"feature_map": "favor"}),
     ("llama", {"feature_map": "relu", "decay": 0.9})],
)  # fmt: skip
def test_the_advice_keeps_what_was_trained(kind: str, options: dict[str, Any]) -> None:
    register("linattn-other", **options)
    model = tiny.MODELS[kind]()
    model.set_attn_implementation("linattn-other")
    tokens = tiny.tokens(1, 4)
    wanted = model(tokens, use_cache=False).logits
    with pytest.raises(ValueError, match="use_cache=False, or convert") as refusal:
        model.generate(tokens, max_new_tokens=4)
    (advice,) = re.findall(r"convert\(.*?\)", str(refusal.value))
    eval(advice, {"convert": convert, "model": model})
    torch.testing.assert_close(model(tokens).logits, wanted)


@pytest.mark.parametrize("options", [{"eps": 1e-3}, {"feature_map": get_feature_map("elu", 4)}])
def test_nothing_is_advised_that_computes_another_function(options: dict[str, Any]) -> None:
    register("linattn-other", **options)
    model = tiny.gpt2()
    model.set_attn_implementation("linattn-other")
    with pytest.raises(ValueError, match="use_cache") as refusal:
        model.generate(tiny.tokens(1, 4), max_new_tokens=4)
    assert "convert" not in str(refusal.value)


def test_a_sliding_window_is_refused() -> None:
    config = tiny.sliding()
    config._attn_implementation = "linattn"

    with pytest.raises(ValueError, match="queries"):
        MistralForCausalLM(config)(tiny.tokens(1, 6))


@pytest.mark.parametrize("kind", tiny.DECODERS)
@pytest.mark.parametrize("use_cache", [False, True])
def test_packed_sequences_are_refused(kind: str, use_cache: bool) -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
    with pytest.raises(ValueError, match="packed"):
        linear(kind)(tiny.tokens(1, 6), position_ids=positions, use_cache=use_cache)


@pytest.mark.parametrize("reentrant", [False, True])
def test_it_trains_with_checkpointed_activations(reentrant: bool) -> None:
    ids, gradients = tiny.tokens(2, 6), []
    for checkpointed in (False, True):
        model = linear("llama").train()
        if checkpointed:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        model(ids, attention_mask=torch.ones_like(ids), labels=ids).loss.backward()
        gradients.append([x.grad for x in model.parameters()])

    torch.testing.assert_close(*gradients)


def test_a_mask_for_each_query_is_refused(kind: str) -> None:
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    with pytest.raises(ValueError, match="attn_mask"):
        linear(kind)(tiny.tokens(1, 6), attention_mask=mask)


@pytest.mark.parametrize(
    ("kind", "field"),
    [("gpt2", "attn_pdrop"), ("llama", "attention_dropout"),
     ("bert", "attention_probs_dropout_prob")],
)  # fmt: skip
def test_dropout_of_weights_is_refused(kind: str, field: str) -> None:
    model = linear(kind, **{field: 0.1})

    model(tiny.tokens(1, 4))  # nothing is dropped in evaluation
    with pytest.raises(ValueError, match=field):
        model.train()(tiny.tokens(1, 4))


def test_a_scale_that_softmax_alone_has_is_refused() -> None:
    model = linear("gpt2", scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(ValueError, match="scaling"):
        model(tiny.tokens(1, 4))


def test_weights_cannot_be_returned(kind: str) -> None:
    with pytest.raises(ValueError, match="output_attentions"):
        linear(kind, output_attentions=True)(tiny.tokens(1, 4))
    with pytest.raises(ValueError, match="output_attentions"):
        linear("llama")(tiny.tokens(1, 4), output_attentions=True)


def test_a_saved_model_is_loaded_by_its_name(kind: str, tmp_path: Path) -> None:
    model, ids = linear(kind), tiny.tokens(1, 6)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(
        tmp_path, attn_implementation="linattn", dtype=torch.float64
    )
    logits = loaded(ids, use_cache=False).logits
    # torch rounds products with weights in a mapped file, which may not be aligned, differently.
    torch.testing.assert_close(logits, model(ids, use_cache=False).logits, rtol=0, atol=1e-12)


def test_a_name_that_is_not_registered_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register("linattn-gone")
    model = tiny.gpt2()
    model.set_attn_implementation("linattn-gone")
    model.save_pretrained(tmp_path)
    monkeypatch.delitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "linattn-gone")
    with pytest.raises(ValueError, match="linattn-gone"):
        type(model).from_pretrained(tmp_path, attn_implementation="linattn-gone")


@pytest.mark.parametrize("masked", [False, True])
def test_a_model_that_does_not_dispatch_attention_by_name_is_refused(masked: bool) -> None:
    sizes = {"vocab_size": tiny.VOCABULARY, "n_layer": 1}
    ids = tiny.tokens(1, 6)
    mask = torch.ones_like(ids) if masked else None
    for cls, config in (
        (BartForConditionalGeneration, tiny.bart()),
        (BloomForCausalLM, BloomConfig(hidden_size=16, n_head=2, **sizes)),
        (MptForCausalLM, MptConfig(d_model=16, n_heads=2, n_layers=1, vocab_size=17)),
    ):
        model: Any = cls._from_config(config, attn_implementation="linattn")
        with pytest.raises(ValueError, match=type(config).__name__):
            model(ids, attention_mask=mask)


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_a_model_that_dispatches_does_so_when_compiled(kind: str) -> None:
    model, batch = linear(kind), tiny.padded(ROWS, "left")
    options = {} if kind == "bert" else {"use_cache": False}

    compiled = torch.compile(model, backend="eager", fullgraph=True)

    wanted = model(**batch, **options).logits
    torch.testing.assert_close(compiled(**batch, **options).logits, wanted)


def test_a_mask_of_another_shape_is_refused(kind: str) -> None:
    # In an encoder, the number of columns is compared by the operator.
    for shape in ((2, 8), (2, 5), (1, 6), (3, 6), (6,)):
        with pytest.raises(ValueError, match="mask"):
            linear(kind)(tiny.tokens(2, 6), attention_mask=torch.ones(shape, dtype=torch.int64))


def test_the_fixed_decay_is_that_of_our_own_layers() -> None:
    ours = Decay("fixed", 4, 16)().double()
    torch.testing.assert_close(log_decay("fixed", 4, torch.ones(()).double()), ours)


def test_a_decay_of_what_is_not_causal_is_refused() -> None:
    register("linattn-decay", decay=0.9)
    model = tiny.bert()
    model.set_attn_implementation("linattn-decay")
    with pytest.raises(ValueError, match="decay"):
        model(tiny.tokens(1, 4))


def test_a_decay_of_another_number_of_heads_is_refused() -> None:
    register("linattn-decay", decay=[0.9] * 3)
    model = tiny.llama()
    model.set_attn_implementation("linattn-decay")
    with pytest.raises(ValueError, match="decay"):
        model(tiny.tokens(1, 4))


class TestRegister:
    @pytest.mark.parametrize(
        ("arguments", "name"),
        [({"feature_map": "foo"}, "feature_map"),
         ({"feature_map": "hedgehog"}, "weights"),
         ({"feature_map": 3}, "feature_map"),
         ({"backend": "foo"}, "backend"),
         ({"backend": None}, "backend"),
         ({"decay": "learned"}, "decay"),
         ({"decay": 0}, "decay"),
         ({"decay": [0.5, 1.5]}, "decay"),
         ({"decay": float("nan")}, "decay"),
         ({"decay": True}, "decay"),
         ({"eps": -1}, "eps"),
         ({"eps": "small"}, "eps"),
         ({"name": ""}, "name"),
         ({"name": "kernels/linattn"}, "name"),
         ({"name": 3}, "name"),
         ({"name": "sdpa"}, "name"),
         ({"name": "eager"}, "eager"),
         ({"name": "linattn-converted"}, "linattn-converted")],
    )  # fmt: skip
    def test_wrong_arguments(self, arguments: dict[str, Any], name: str) -> None:
        before = dict(AttentionInterface._global_mapping)

        with pytest.raises((ValueError, TypeError), match=name):
            register(**{"name": "linattn-refused", **arguments})

        assert AttentionInterface._global_mapping == before

    def test_a_name_of_ours_is_replaced(self) -> None:
        ids, logits = tiny.tokens(1, 4), []
        model = tiny.gpt2()
        for feature_map in ("elu", "relu"):
            register("linattn-again", feature_map=feature_map)
            model.set_attn_implementation("linattn-again")
            logits.append(model(ids).logits)

        assert not torch.allclose(*logits)
