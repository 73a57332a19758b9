"""A converted Llama or GPT-2 steps by a compiled decoder where it can be described."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs the extra [transformers]")

import transformers
from transformers import DynamicCache

from linattn_models.decoding.choose import FEWEST_STEPS
from linattn_models.huggingface import convert, load_converted, stepping
from linattn_models.huggingface.steps import Steps
from tests.models.decoding.decoders import close, needs_cpu_backend
from tests.models.huggingface import tiny

pytestmark = needs_cpu_backend

ROWS = [tiny.tokens(1, length, seed=length)[0] for length in (7, 3, 5)]
LEFT = {name: x for name, x in tiny.padded(ROWS, "left").items() if name != "position_ids"}
GREEDY = {"max_new_tokens": 30, "do_sample": False}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each compiled step."""
    steps: list[int] = []
    step = stepping._step

    def counting(*arguments: Any) -> Tensor | None:
        logits = step(*arguments)
        if logits is not None:
            steps.append(1)
        return logits

    monkeypatch.setattr(stepping, "_step", counting)
    return steps


def converted(
    kind: str = "llama", feature_map: str = "elu", decay: Any = None, **fields: Any
) -> Any:
    model = tiny.DECODERS[kind](**fields).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.div_(3)
    return convert(model, feature_map=feature_map, decay=decay)


def in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Steps, "choose", lambda *_: None)


@pytest.mark.parametrize(
    "fields",
    [{}, {"feature_map": "relu"}, {"decay": "fixed"}, {"decay": [0.5, 1.0]},
     {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
     {"tie_word_embeddings": True, "hidden_act": "gelu", "rms_norm_eps": 0.1},
     {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
     {"hidden_act": "gelu_pytorch_tanh"},
     {"kind": "gpt2"}, {"kind": "gpt2", "decay": "fixed", "activation_function": "relu"},
     {"kind": "gpt2", "feature_map": "relu", "tie_word_embeddings": False, "n_inner": 24}],
    ids=str,
)  # fmt: skip
def test_logits_are_those_of_the_model(fields: dict[str, Any], compiled: list[int]) -> None:
    model, cache = converted(**fields), DynamicCache()
    tokens = tiny.tokens(2, 40)
    wanted = model(tokens, use_cache=False).logits

    with torch.no_grad():
        got = [model(x, past_key_values=cache).logits for x in tokens.split(1, 1)]

    close(torch.cat(got, 1), wanted)
    assert len(compiled) == 39 - FEWEST_STEPS
    assert [layer.seen for layer in cache.layers] == [40, 40]


@pytest.mark.parametrize("kind", tiny.DECODERS)
@pytest.mark.parametrize(
    "settings", [{}, {"num_beams": 3}, {"do_sample": True, "num_return_sequences": 2}]
)
def test_generation_is_that_of_the_model(
    kind: str, settings: dict[str, Any], compiled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens = converted(kind), []
    for _ in range(2):
        torch.manual_seed(0)
        tokens.append(model.generate(**LEFT, **{**GREEDY, **settings}))
        in_eager(monkeypatch)

    assert torch.equal(*tokens)
    assert len(compiled) == 29 - FEWEST_STEPS


@torch.no_grad()
def test_a_step_past_the_last_learned_position_is_the_models_own(compiled: list[int]) -> None:
    model, token, cache = converted("gpt2", n_positions=20), torch.tensor([[1]]), DynamicCache()
    for _ in range(20):
        model(token, past_key_values=cache)
    assert len(compiled) == 19 - FEWEST_STEPS

    with pytest.raises(IndexError):
        model(token, past_key_values=cache)


@torch.no_grad()
def test_changed_weights_are_seen(compiled: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model = converted()
    model.generate(**LEFT, **GREEDY)
    compiled.clear()
    model.generate(**LEFT, **GREEDY)
    assert len(compiled) == 29  # packed before

    for write in (model.lm_head.weight, model.model.layers[1].self_attn.attention.q_proj.weight):
        write.data.mul_(-3.0)  # counted by no version
        out = model.generate(**LEFT, **GREEDY)
        with monkeypatch.context() as patch:
            in_eager(patch)
            assert torch.equal(out, model.generate(**LEFT, **GREEDY))
    assert len(compiled) == 29 + 2 * (29 - FEWEST_STEPS)


def test_steps_with_gradients_labels_or_more_outputs_are_the_models_own(
    compiled: list[int],
) -> None:
    model, token = converted(), torch.tensor([[1], [2], [3]])
    cache = model(**LEFT).past_key_values
    with torch.no_grad():
        for _ in range(FEWEST_STEPS + 1):
            model(token, past_key_values=cache)
    assert compiled == [1]

    assert model(token, past_key_values=cache).logits.requires_grad
    with torch.no_grad():
        assert model(token, past_key_values=cache, labels=token).loss is not None
        assert isinstance(model(token, past_key_values=cache, return_dict=False), tuple)
        assert compiled == [1]
        model(token, past_key_values=cache)
        assert compiled == [1, 1]
        assert model(token, past_key_values=cache, output_hidden_states=True).hidden_states
        assert compiled == [1, 1]


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "save"])
def test_a_copy_of_a_model_is_compiled_too(how: str, compiled: list[int], tmp_path: Path) -> None:
    model = converted(decay=0.9)
    wanted = model.generate(**LEFT, **GREEDY)
    if how == "deepcopy":
        other = copy.deepcopy(model)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        model.save_pretrained(tmp_path)
        other = load_converted(tmp_path)
    compiled.clear()

    assert torch.equal(other.generate(**LEFT, **GREEDY), wanted)

    assert len(compiled) == 29 - FEWEST_STEPS
    assert isinstance(other, transformers.LlamaForCausalLM)
    assert type(other).__name__ == "LlamaForCausalLM"


def hedgehog() -> Any:
    return convert(tiny.llama().float())


def windowed() -> Any:
    return convert(tiny.llama().float(), window_size=3)


def scaled_positions() -> Any:
    return converted(rope_parameters=LINEAR)


def another_activation() -> Any:
    return converted(hidden_act="quick_gelu")


def with_a_hook() -> Any:
    model = converted()
    model.model.norm.register_forward_hook(lambda module, args, output: output * 2)
    return model


def with_another_arithmetic() -> Any:
    model = converted()
    model.model.layers[0].mlp.act_fn = torch.nn.Tanh()
    return model


def with_rounded_frequencies() -> Any:
    return converted().bfloat16().float()


@pytest.mark.parametrize(
    "build",
    [hedgehog, windowed, scaled_positions, another_activation, with_a_hook,
     with_another_arithmetic, with_rounded_frequencies],
)  # fmt: skip
def test_what_cannot_be_described_steps_by_itself(
    build: Any, compiled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build()

    out = model.generate(**LEFT, **GREEDY)

    assert not compiled
    assert torch.equal(out, model.generate(**LEFT, **GREEDY, use_cache=False))


def change_activation(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = torch.nn.ReLU()


def change_frequencies(model: Any) -> None:
    model.model.rotary_emb.inv_freq.mul_(0.3)


def scale_rotation(model: Any) -> None:
    model.model.rotary_emb.attention_scaling = 0.5


@pytest.mark.parametrize("change", [change_activation, change_frequencies, scale_rotation])
def test_a_packed_decoder_does_not_outlive_a_changed_module(
    change: Any, compiled: list[int]
) -> None:
    model = converted()
    model.generate(**LEFT, **GREEDY)
    change(model)
    compiled.clear()

    out = model.generate(**LEFT, **GREEDY)

    assert not compiled
    assert torch.equal(out, model.generate(**LEFT, **GREEDY, use_cache=False))
