"""`from_transformers`: our model computes what the model of transformers does, on every path."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra [transformers]")

from transformers import LlamaConfig, LlamaForCausalLM, MistralForCausalLM

from linattn_models import (
    AutoregressiveTransformer,
    load,
    save,
)
from linattn_models.huggingface import convert, from_transformers, load_converted, register
from tests.models.decoding.decoders import Kind, close, needs_cpu_backend
from tests.models.huggingface import tiny

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16, "rope_theta": 1000.0,
}  # fmt: skip
MODELS = {
    "gpt2": tiny.gpt2,
    "llama": tiny.llama,
    "llama 3": lambda: tiny.llama(rope_parameters=LLAMA3, rms_norm_eps=0.1),
    "tied": lambda: tiny.llama(tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "mistral": tiny.mistral,
    "qwen2": tiny.qwen2,
}
ATTENTION: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda model: model,
    "hedgehog": lambda model: convert(model, num_features=8, decay=0.9),
    "window": lambda model: convert(model, window_size=3),
    "elu": lambda model: convert(model, feature_map="elu"),
    "decay": lambda model: convert(model, feature_map="relu", decay="fixed"),
}
TOKENS = tiny.tokens(2, 9)
HAS_CPU_BACKEND = find_spec("linattn_cpu") is not None


def original(kind: str = "llama", attention: str = "elu") -> Any:
    """In float32, with other values in what `convert` adds than at the start."""
    model = MODELS[kind]().float()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.div_(3)
    model = ATTENTION[attention](model)
    with torch.no_grad():
        for layer in tiny.layers(model):
            for weight in layer.new_parameters():
                weight.add_(torch.randn_like(weight) / 3)
    return model


def greedy(model: Any, tokens: Any = TOKENS, new: int = 30, **options: Any) -> Any:
    options = {"do_sample": False, "attention_mask": torch.ones_like(tokens), **options}
    return model.generate(tokens, max_new_tokens=new, **options)


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("kind", MODELS)
def test_logits_and_greedy_tokens_are_those_of_the_model(
    kind: str, attention: str, tmp_path: Path
) -> None:
    model = original(kind, attention)
    ours = from_transformers(model)

    close(ours(TOKENS)[:, 1:], model(TOKENS).logits[:, :-1])
    wanted = greedy(model)
    for decoder in ["eager"] + ["compiled"] * (HAS_CPU_BACKEND and attention != "softmax"):
        got = ours.generate(prefix=TOKENS, max_new_tokens=30, temperature=0, decoder=decoder)
        assert torch.equal(got, wanted)
    save(ours, tmp_path)
    again = load(tmp_path)
    assert isinstance(again, AutoregressiveTransformer)
    assert again.to_dict() == ours.to_dict() and torch.equal(again(TOKENS), ours(TOKENS))


@pytest.mark.parametrize(
    ("kind", "attention"),
    [("eager", "softmax"), ("eager", "window"), *((kind, "elu") for kind in ("eager", "tape")),
     pytest.param("native", "elu", marks=needs_cpu_backend)],
)  # fmt: skip
def test_without_tokens_every_token_is_as_likely(kind: str, attention: str) -> None:
    ours = from_transformers(original(attention=attention))
    source = Kind(kind).decoder(ours)
    parameters, state = source.prefill(torch.zeros(2, 0, dtype=torch.int64))
    assert not parameters.any()
    assert state.position == 0
    parameters, state = source.prefill(TOKENS[:, :2], torch.tensor([0, 2]))
    assert not parameters[0].any()
    close(parameters[1], ours.predict_next(TOKENS[1:, :2])[0])
    parameters, _ = source.prefill(TOKENS[:, :4], None, state)
    close(parameters[0], ours.predict_next(TOKENS[:1, :4])[0])
    first = ours.log_probs(TOKENS)[:, 0]
    assert torch.allclose(first.exp(), torch.tensor(1 / tiny.VOCABULARY))
    assert ours.generate(2, length=8).shape == (2, 8)


@pytest.mark.parametrize("attention", ["softmax", "window"])
def test_prompts_side_by_side_and_beams_are_those_of_the_model(attention: str) -> None:
    model = original("qwen2", attention)
    ours = from_transformers(model)
    rows = [tiny.tokens(1, length, seed=length)[0] for length in (7, 3, 5)]

    tokens = ours.generate(prefix=[row.tolist() for row in rows], max_new_tokens=30, temperature=0)
    for row, own in zip(rows, tokens, strict=True):
        assert torch.equal(own[own >= 0], greedy(model, row[None])[0])

    beams = greedy(model, rows[0][None], num_beams=3, length_penalty=0.0, new=10)
    got = ours.beam_search(prefix=rows[0][None], num_beams=3, max_new_tokens=10)
    assert torch.equal(got.tokens[0, 0], beams[0])


def test_as_many_tokens_as_positions_are_read() -> None:
    model = original("gpt2", "softmax")
    ours = from_transformers(model)
    tokens = tiny.tokens(1, ours.longest)
    close(ours.prefill(tokens)[0], model(tokens).logits[:, -1])


@pytest.mark.parametrize("decay", [None, [0.5, 1.0]])
def test_a_registered_model_keeps_its_map_and_decay(decay: Any) -> None:
    register("linattn-translated", feature_map="relu", decay=decay, eps=0.01)
    model = original(attention="softmax")
    model.set_attn_implementation("linattn-translated")

    ours = from_transformers(model)

    close(ours(TOKENS)[:, 1:], model(TOKENS).logits[:, :-1])
    wanted = greedy(model, use_cache=False)
    assert torch.equal(ours.generate(prefix=TOKENS, max_new_tokens=30, temperature=0), wanted)


def test_a_loaded_model_is_taken_in_its_dtype(tmp_path: Path) -> None:
    original(attention="window").bfloat16().save_pretrained(tmp_path)
    model = load_converted(tmp_path)

    ours = from_transformers(model)

    assert {weight.dtype for weight in ours.parameters()} == {torch.bfloat16}
    got, wanted = ours(TOKENS)[:, 1:], model(TOKENS).logits[:, :-1]
    torch.testing.assert_close(got, wanted, rtol=0.05, atol=0.05)


def with_a_hook() -> Any:
    model = original()
    model.model.norm.register_forward_hook(lambda module, args, output: output * 2)
    return model


def with_another_layer() -> Any:
    model = original()
    model.model.layers[0].mlp.up_proj = torch.nn.Bilinear(16, 16, 24)
    return model


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: tiny.ready(MistralForCausalLM, tiny.sliding()), "sliding_window"),
        (lambda: tiny.llama(rope_parameters={"rope_type": "linear", "factor": 2.0}), "rope"),
        (lambda: tiny.llama(hidden_act="gelu"), "hidden_act"),
        (lambda: tiny.llama(head_dim=8), "head_dim"),
        (lambda: tiny.gpt2(activation_function="silu"), "activation_function"),
        (lambda: tiny.gpt2(scale_attn_weights=False), "scale"),
        (lambda: tiny.gpt2(add_cross_attention=True), "add_cross_attention"),
        (with_a_hook, "logits"),
        (with_another_layer, "expand"),
        (lambda: tiny.bert(), "model"),
        (lambda: torch.nn.Linear(2, 2), "model"),
    ],
)
def test_what_ours_cannot_express_is_refused_by_name(build: Any, named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        from_transformers(build())


@pytest.mark.parametrize("template", ["s $A", "s $A s", "$A"])
def test_a_text_begins_with_the_tokens_that_its_tokenizer_puts_first(template: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"s": 1, "a": 2, "b": 3} | {f"w{x}": x for x in (0, *range(4, tiny.VOCABULARY))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = [("s", 1)]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=template, special_tokens=special
    )
    ours = from_transformers(original(attention="softmax"))
    ours.tokenizer = tokenizer
    first = [1] if template.startswith("s") else []

    for text, tokens in (("a b", [*first, 2, 3]), ("s b", [1, 3]), ("", first)):
        got = ours.generate(prefix=text, max_new_tokens=4, temperature=0)
        assert got[0, :-4].tolist() == tokens
    _, state = ours.generate(prefix="a", max_new_tokens=1, temperature=0, return_state=True)
    assert ours.generate(prefix="b", state=state, max_new_tokens=1)[0, 0] == 3


def test_offloaded_weights_are_refused() -> None:
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1))
    with pytest.raises(ValueError, match="offloaded"):
        from_transformers(model)
