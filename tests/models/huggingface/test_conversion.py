"""convert: softmax replaced in GPT-2, Llama and BERT, and the maps that learn from it."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

pytest.importorskip("transformers", reason="needs the extra [transformers]")

import transformers
from transformers import (
    AutoModelForCausalLM,
    BartForCausalLM,
    BartForConditionalGeneration,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DynamicCache,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MistralForCausalLM,
    T5Config,
    T5EncoderModel,
    ViTConfig,
    ViTModel,
)

from linattn_core import linear_attention
from linattn_models import TransformerConfig
from linattn_models.huggingface import (
    ConvertedAttention,
    LinattnConfig,
    LinattnForCausalLM,
    StateLayer,
    convert,
    load_converted,
    register,
    transfer_attention,
)
from linattn_models.huggingface.cache import CACHE
from linattn_models.huggingface.converted import softmax_attention
from linattn_models.huggingface.interface import Call
from tests.models.huggingface import tiny

ROWS = [tiny.tokens(1, length, seed=length)[0] for length in (7, 3, 5)]
LEFT = tiny.prompts(ROWS)


# Sizes of windows; test_window.py has what windows alone do.
windows = pytest.mark.parametrize("window_size", [0, 2])
KINDS_AND_WINDOWS = [(kind, size) for kind in tiny.DECODERS for size in (0, 4)]


def converted(kind: str, window_size: int = 0, **fields: Any) -> Any:
    return convert(tiny.MODELS[kind](**fields), window_size=window_size)


def batches(number: int) -> list[dict[str, Tensor]]:
    """Padded on the left, on the right, and not at all."""
    made = []
    for seed in range(number):
        rows = [tiny.tokens(1, length, seed=seed)[0] for length in (12, 9, 12)]
        made.append(tiny.prompts(rows, ("left", "right")[seed % 2]))
    return made


def test_every_layer_is_replaced_and_weights_stay(kind: str) -> None:
    model = tiny.MODELS[kind]()
    before = {name.rpartition(".")[2]: x for name, x in model.state_dict().items()}

    assert convert(model) is model

    assert len(tiny.layers(model)) == 2
    after = {n.rpartition(".")[2]: x for n, x in model.state_dict().items()}
    assert after.keys() - before.keys() == {"query_weight", "key_weight"}
    assert all(torch.equal(after[name], x) for name, x in before.items())
    kv_heads = 2 if kind == "llama" else 4
    assert tiny.layers(model)[0].feature_map.key_weight.shape == (kv_heads, 4, 4)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("kind", "window_size"), [*KINDS_AND_WINDOWS, ("bert", 0)])
def test_padding_is_exact(kind: str, window_size: int, side: str) -> None:
    model = converted(kind, window_size)
    logits = model(**tiny.padded(ROWS, side)).logits

    for row, x in zip(ROWS, logits, strict=True):
        alone = model(row[None]).logits[0]
        torch.testing.assert_close(x[tiny.real(row, 7, side)], alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "window_size", "options"),
    [("gpt2", 0, {}), ("gpt2", 4, {"num_beams": 3}), ("llama", 0, {"num_beams": 3}),
     ("llama", 4, {})],
)  # fmt: skip
def test_generation_by_the_state_is_generation_without_one(
    kind: str, window_size: int, options: dict[str, Any]
) -> None:
    model = converted(kind, window_size)
    settings = {"max_new_tokens": 9, "do_sample": False, **options}

    cached = model.generate(**LEFT, **settings)

    assert cached.tolist() == model.generate(**LEFT, **settings, use_cache=False).tolist()
    assert len({tuple(row.tolist()) for row in cached}) == 3


@pytest.mark.parametrize(("kind", "window_size"), KINDS_AND_WINDOWS)
def test_the_state_does_not_grow_and_tokens_may_come_in_pieces(kind: str, window_size: int) -> None:
    model, cache = converted(kind, window_size), DynamicCache()
    tokens = tiny.tokens(2, 20)
    pieces, sizes = [], []
    for piece in tokens.split([1, 1, 4, 1, 9, 1, 3], dim=1):
        pieces.append(model(piece, **{CACHE: cache}, use_cache=True).logits)
        sizes.append([layer.state.nbytes for layer in cache.layers])
        # Of the memory behind the tensors, which views may share with larger ones.
        tensors = [tree_leaves(layer.state) for layer in cache.layers]
        held = [
            sum(x.untyped_storage().nbytes() for x in each if x is not None) for each in tensors
        ]
        assert held == sizes[-1]

    torch.testing.assert_close(torch.cat(pieces, 1), model(tokens).logits, rtol=1e-9, atol=1e-9)
    assert all(isinstance(layer, StateLayer) for layer in cache.layers)
    assert cache.get_seq_length() == 20
    # A window is full after three pieces, and the state behind it begins then.
    assert all(size == sizes[2] for size in sizes[2 if window_size else 0 :])


def test_the_teacher_is_the_model_itself(kind: str) -> None:
    teacher = tiny.MODELS[kind]()
    student = convert(copy.deepcopy(teacher))
    batch = tiny.padded(ROWS, "left")
    for layer in tiny.layers(student):
        layer.teaching = True

    logits = student(**batch).logits

    for row, got, wanted in zip(ROWS, logits, teacher(**batch).logits, strict=True):
        part = tiny.real(row, 7, "left")
        torch.testing.assert_close(got[part], wanted[part], rtol=1e-8, atol=1e-8)


_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}


def neox() -> Any:
    config = GPTNeoXConfig(
        vocab_size=tiny.VOCABULARY, intermediate_size=24, max_position_embeddings=64,
        bos_token_id=1, eos_token_id=None, pad_token_id=0, **_SIZES,
    )  # fmt: skip
    return tiny.ready(GPTNeoXForCausalLM, config)


def distilbert() -> Any:
    config = DistilBertConfig(
        vocab_size=tiny.VOCABULARY, dim=16, hidden_dim=24, n_layers=2, n_heads=4, dropout=0.0,
        attention_dropout=0.0, max_position_embeddings=64,
    )  # fmt: skip
    return tiny.ready(DistilBertForMaskedLM, config)


def vit() -> Any:
    config = ViTConfig(image_size=8, patch_size=4, intermediate_size=24, **_SIZES)
    return tiny.ready(ViTModel, config)


@pytest.mark.parametrize("build", [neox, distilbert, vit])
def test_layers_that_take_no_cache_or_by_another_name(build: Any) -> None:
    teacher = build()
    student = convert(copy.deepcopy(teacher))
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    batch = {"pixel_values": images} if build is vit else LEFT

    errors = transfer_attention(student, [batch])
    for layer in tiny.layers(student):
        layer.teaching = True
    taught, wanted = student(**batch)[0], teacher(**batch)[0]
    for layer in tiny.layers(student):
        layer.teaching = False

    real = torch.ones(wanted.shape[:2]) if build is vit else LEFT["attention_mask"]
    torch.testing.assert_close(taught[real.bool()], wanted[real.bool()], rtol=1e-8, atol=1e-8)
    assert errors[0] > 0
    if build is neox:
        settings = {"max_new_tokens": 6, "do_sample": False}
        cached = student.generate(**LEFT, **settings)
        assert cached.tolist() == student.generate(**LEFT, **settings, use_cache=False).tolist()


@windows
@pytest.mark.parametrize("implementation", tiny.OTHER_CACHES)
def test_other_caches_hold_the_state_too(implementation: str, window_size: int) -> None:
    model, ids = converted("llama", window_size), tiny.tokens(2, 5)
    settings = {"max_new_tokens": 6, "do_sample": False}

    out = model.generate(ids, cache_implementation=implementation, **settings)

    assert torch.equal(out, model.generate(ids, **settings))


@windows
def test_it_trains_with_checkpointed_activations(window_size: int) -> None:
    gradients = []
    for checkpointed in (False, True):
        model = converted("llama", window_size).train()
        if checkpointed:
            model.activation_checkpointing_enable()
        ids = tiny.tokens(2, 6)
        model(ids, attention_mask=torch.ones_like(ids), labels=ids).loss.backward()
        gradients.append([x.grad for x in model.parameters()])

    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("kind", "window_size"), [("gpt2", 0), ("llama", 0), ("llama", 2), ("bert", 0)]
)
def test_transfer_brings_each_layer_nearer_to_its_softmax(kind: str, window_size: int) -> None:
    model = convert(tiny.MODELS[kind](), num_features=16, window_size=window_size).train()
    new = {id(x) for layer in tiny.layers(model) for x in layer.new_parameters()}
    before = {name: x.clone() for name, x in model.named_parameters()}

    errors = transfer_attention(model, batches(2) * 15, learning_rate=5e-2)

    assert sum(errors[-2:]) < 0.6 * sum(errors[:2])
    assert sum("log_gamma" in name for name in before) == (2 if window_size else 0)
    for name, x in model.named_parameters():
        assert torch.equal(x, before[name]) == (id(x) not in new), name
        assert x.requires_grad
    assert model.training


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_16_bits_learn_as_in_float32(dtype: torch.dtype) -> None:
    losses = []
    for model in (converted("llama").to(dtype), converted("llama").to(dtype).float()):
        losses.append(transfer_attention(model, batches(2) * 15, learning_rate=5e-2))
        assert all(x.isfinite().all() for x in model.parameters())
    half, single = torch.tensor(losses)
    torch.testing.assert_close(half, single, rtol=0.1, atol=0.0)


def test_an_error_that_is_not_finite_stops_before_the_weights_change() -> None:
    model = converted("llama")
    with torch.no_grad():
        tiny.layers(model)[0].attention.v_proj.weight[0, 0] = torch.inf
    before = {name: x.clone() for name, x in model.named_parameters()}
    with pytest.raises(ValueError, match=r"the error of step 1: expected a number, got nan"):
        transfer_attention(model, batches(1))
    assert all(torch.equal(x, before[name]) for name, x in model.named_parameters())


def test_the_error_is_that_of_the_definition() -> None:
    model = converted("llama")
    (layer, _) = tiny.layers(model)
    calls: list[Call] = []

    def attend(call: Call, state: StateLayer | None) -> Tensor:
        calls.append(call)
        return ConvertedAttention.attend(layer, call, state)

    layer.attend = attend  # type: ignore[method-assign]
    layer.teaching = True
    model(tiny.tokens(2, 6))
    (call,) = calls
    query, key, value = call.query, call.key, call.value
    linear = linear_attention(
        query, key, value, is_causal=True, feature_map=layer.feature_map, enable_gqa=True
    )
    # Both sides hold the root of the scale already.
    softmax = softmax_attention(call._replace(scaling=1.0))
    wanted = (linear - softmax).square().sum() / softmax.square().sum()

    torch.testing.assert_close(layer.error, wanted)


@pytest.mark.parametrize(
    ("kind", "features", "window_size"), [("gpt2", 6, 0), ("llama", None, 0), ("llama", None, 4)]
)
def test_it_is_saved_and_loaded(
    kind: str, features: int | None, window_size: int, tmp_path: Path
) -> None:
    model = convert(tiny.MODELS[kind](), num_features=features, window_size=window_size)
    transfer_attention(model, batches(2))
    model.save_pretrained(tmp_path)

    loaded = load_converted(tmp_path)

    ids = tiny.tokens(2, 5)
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=1e-5, atol=1e-5)
    assert loaded.generate(ids, max_new_tokens=4).shape == (2, 9)


# peft asks transformers by the older of two names.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_lora_trains_few_weights_merges_and_is_saved(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="LoRA needs peft")
    model = converted("llama")
    lora = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"])
    adapted = peft.get_peft_model(model, lora)
    optimizer = torch.optim.Adam((x for x in adapted.parameters() if x.requires_grad), 1e-2)
    tokens = tiny.tokens(2, 8)
    losses = []
    for _ in range(15):
        loss = adapted(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    adapted.eval()
    wanted = adapted(input_ids=tokens).logits
    merged = adapted.merge_and_unload()

    assert losses[-1] < 0.9 * losses[0]
    torch.testing.assert_close(merged(tokens).logits, wanted)
    assert len(tiny.layers(merged)) == 2
    merged.save_pretrained(tmp_path)
    loaded = load_converted(tmp_path)
    torch.testing.assert_close(loaded(tokens).logits, wanted)
    assert loaded.generate(tokens, max_new_tokens=3).shape == (2, 11)


@pytest.mark.parametrize(("kind", "window_size"), KINDS_AND_WINDOWS)
def test_no_token_continues_a_row_that_ended_in_padding(kind: str, window_size: int) -> None:
    """Also where the window of its row holds nothing but padding."""
    model, right = converted(kind, window_size), tiny.padded(ROWS, "right")
    ids, mask = right["input_ids"], right["attention_mask"]

    cache = model(ids, attention_mask=mask, use_cache=True)[CACHE]  # logits are right
    with pytest.raises(ValueError, match="row 1"):
        model(
            torch.ones(3, 1, dtype=torch.int64), **{CACHE: cache},
            attention_mask=torch.cat([mask, mask[:, :1]], 1),
        )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 3},
        {"use_cache": False},
        {"num_beams": 2},
        {"num_return_sequences": 2, "do_sample": True},
    ],
)
def test_prompts_that_end_in_padding_are_refused(options: dict[str, Any]) -> None:
    """Also of one token alone, with a mask of bytes, and by copies of the model."""
    model, right = converted("llama"), tiny.padded(ROWS, "right")
    ids, mask = right["input_ids"], right["attention_mask"].to(torch.uint8)
    for generating in (model, pickle.loads(pickle.dumps(model))):
        with pytest.raises(ValueError, match=r"row [12]"):
            generating.generate(ids, attention_mask=mask, **{"max_new_tokens": 1, **options})


@pytest.mark.parametrize(("kind", "window_size"), KINDS_AND_WINDOWS)
def test_prompts_may_be_read_in_pieces_and_begin_with_vectors(kind: str, window_size: int) -> None:
    model = converted(kind, window_size)
    settings = {"max_new_tokens": 4, "do_sample": False}
    wanted = model.generate(**LEFT, **settings)

    assert torch.equal(model.generate(**LEFT, **settings, prefill_chunk_size=3), wanted)
    vectors = model.get_input_embeddings()(LEFT["input_ids"])
    mask = LEFT["attention_mask"]
    new = model.generate(inputs_embeds=vectors, attention_mask=mask, **settings)
    assert torch.equal(new, wanted[:, 7:])


def test_the_last_logits_are_compiled_as_a_whole() -> None:
    model, batch = converted("llama"), {**LEFT, "use_cache": False, "logits_to_keep": 1}

    compiled = torch.compile(model, backend="eager", fullgraph=True)

    torch.testing.assert_close(compiled(**batch).logits, model(**batch).logits)


@pytest.mark.parametrize(
    ("kind", "decay"),
    [("gpt2", None), ("gpt2", "fixed"), ("llama", 0.9), ("llama", [0.5, 0.9])], ids=str,
)  # fmt: skip
def test_a_registered_model_keeps_what_it_learned(kind: str, decay: Any, tmp_path: Path) -> None:
    register("linattn-kept", decay=decay)
    model, ids = tiny.MODELS[kind](), tiny.tokens(2, 9)
    model.set_attn_implementation("linattn-kept")
    wanted = model(ids, use_cache=False).logits
    convert(model, feature_map="elu", decay=decay).save_pretrained(tmp_path)
    for each in (model, load_converted(tmp_path, dtype=torch.float64)):
        for pieces in (ids.split(4, 1), ids.split(1, 1)):
            cache = DynamicCache()
            logits = [each(piece, **{CACHE: cache}).logits for piece in pieces]
            torch.testing.assert_close(torch.cat(logits, 1), wanted)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("llama", {"decay": 2}), ("llama", {"decay": [0.5] * 3}), ("bert", {"decay": 0.9}),
     ("llama", {"decay": 0.9, "window_size": 4})],
)  # fmt: skip
def test_a_decay_that_no_layer_has_is_refused(kind: str, settings: dict[str, Any]) -> None:
    model = tiny.MODELS[kind]()
    with pytest.raises(ValueError, match="decay"):
        convert(model, **settings)
    assert not tiny.layers(model)


def without_head_dim() -> Any:
    model = tiny.llama()
    del model.model.layers[1].self_attn.head_dim
    return model


def with_keys_of_another_sequence() -> Any:
    def forward(hidden: Tensor, key_value_states: Tensor | None = None, **rest: Any) -> None:
        pass

    model = tiny.llama()
    model.model.layers[1].self_attn.forward = forward
    return model


class OldAttention(nn.Linear):
    """A layer that dispatches nothing."""


class TestRefusals:
    @pytest.mark.parametrize(
        ("build", "named"),
        [
            (lambda: converted("gpt2"), r"h\.0\.attn"),
            (lambda: tiny.gpt2(add_cross_attention=True), r"h\.0\.crossattention"),
            (lambda: BartForConditionalGeneration(tiny.bart()), r"layers\.0\.self_attn"),
            (lambda: BartForCausalLM(tiny.bart()), r"layers\.0\.self_attn"),
            (lambda: T5EncoderModel(T5Config(d_model=16, num_layers=1)), "SelfAttention"),
            (with_keys_of_another_sequence, r"layers\.1\.self_attn"),
            (without_head_dim, r"layers\.1\.self_attn"),
            (lambda: nn.Sequential(nn.Linear(2, 2), OldAttention(2, 2)), "OldAttention"),
            (lambda: nn.Linear(2, 2), "Linear"),
        ],
    )
    def test_layers_that_cannot_be_replaced(self, build: Any, named: str) -> None:
        with pytest.raises(ValueError, match=named):
            convert(build())

    def test_a_sliding_window(self) -> None:
        model = MistralForCausalLM(tiny.sliding())
        with pytest.raises(ValueError, match=r"layers\.0\.self_attn"):
            convert(model)

        model.config.sliding_window = None
        assert len(tiny.layers(convert(model))) == 1

    @pytest.mark.parametrize("kind", ["DiffLlama", "HrmText", "Zaya"])
    def test_a_layer_whose_cache_holds_more_than_its_keys_and_values(self, kind: str) -> None:
        config = getattr(transformers, f"{kind}Config")(
            vocab_size=tiny.VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, head_dim=8, pad_token_id=0,
            bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        model = getattr(transformers, f"{kind}ForCausalLM")(config).train()
        tokens, implementation = tiny.tokens(1, 4), model.config._attn_implementation
        before = model.eval()(tokens).logits
        with pytest.raises(
            ValueError, match=r"^model\.(L_module\.)?layers\.0\.self_attn: expected"
        ):
            convert(model.train())
        assert model.training and model.config._attn_implementation == implementation
        assert torch.equal(model.eval()(tokens).logits, before)

    def test_weights_that_are_not_on_the_device(self) -> None:
        model = converted("llama")
        for layer in tiny.layers(model):
            layer.feature_map.to("meta")
        with pytest.raises(ValueError, match="meta"):
            model(tiny.tokens(1, 3))

    def test_transfer_without_conversion(self) -> None:
        with pytest.raises(ValueError, match="converted"):
            transfer_attention(tiny.gpt2(), batches(1))

    @pytest.mark.parametrize("model", [3, type(tiny.gpt2())])
    def test_what_is_no_model(self, model: Any) -> None:
        with pytest.raises(TypeError, match="model"):
            convert(model)
        with pytest.raises(TypeError, match="model"):
            transfer_attention(model, batches(1))

    @pytest.mark.parametrize(
        ("name", "size"),
        [("num_features", "8"), ("num_features", 8.0), ("num_features", 7), ("num_features", 0),
         ("window_size", -1), ("window_size", 2.0), ("window_size", True)],
    )  # fmt: skip
    def test_sizes_that_no_layer_has(self, name: str, size: Any) -> None:
        model = tiny.gpt2()
        with pytest.raises((TypeError, ValueError), match=name):
            convert(model, **{name: size})
        assert not tiny.layers(model)

    @pytest.mark.parametrize(
        ("batches", "rate", "name"),
        [
            ([[1, 2]], 0.1, "batch"),
            ([torch.ones(3)], 0.1, "batch"),
            ([], 0.1, "batches"),
            (None, 0.1, "batches"),
            ([], -1, "learning_rate"),
            ([], float("nan"), "learning_rate"),
            ([], "1", "learning_rate"),
        ],
    )
    def test_batches_and_rates(self, batches: Any, rate: Any, name: str) -> None:
        with pytest.raises((TypeError, ValueError), match=name):
            transfer_attention(converted("gpt2"), batches, learning_rate=rate)

    def test_what_is_no_folder_of_a_converted_model(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match="folder"):
            load_converted(None)  # type: ignore[arg-type]
        for folder in (tmp_path, tmp_path / "nowhere"):
            with pytest.raises(ValueError, match=folder.name):
                load_converted(folder)
        (tmp_path / "adapter_config.json").touch()
        with pytest.raises(ValueError, match="adapter"):
            load_converted(tmp_path)
        (tmp_path / "adapter_config.json").unlink()
        for content in ("{}", "{"):
            (tmp_path / "config.json").write_text(content)
            with pytest.raises(ValueError, match=tmp_path.name):
                load_converted(tmp_path)
        model = tiny.gpt2()
        model.save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="converted"):
            load_converted(tmp_path)
        model.config.update(converted("gpt2").config.to_diff_dict())
        model.save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="weights"):
            load_converted(tmp_path)

    @pytest.mark.parametrize("change", [{"linattn_features": 4}, {"n_layer": 1}, {"n_layer": 3}])
    def test_a_folder_with_other_weights(self, change: dict[str, int], tmp_path: Path) -> None:
        converted("gpt2").save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="weights"):
            load_converted(tmp_path, **change)

    def test_a_converted_folder_that_is_loaded_without_its_layers(self, tmp_path: Path) -> None:
        model = converted("gpt2")
        model.save_pretrained(tmp_path)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
        with pytest.raises(ValueError, match=f"load_converted.*{tmp_path.name}"):
            loaded.generate(tiny.tokens(1, 3), max_new_tokens=2)

    def test_the_name_without_conversion(self) -> None:
        model = tiny.gpt2()
        model.set_attn_implementation("linattn-converted")
        with pytest.raises(ValueError, match="convert"):
            model(tiny.tokens(1, 3))

    def test_a_state_of_a_whole_model_and_the_other_way(self) -> None:
        ids = tiny.tokens(1, 3)
        shape = TransformerConfig(num_layers=1, num_heads=2, head_dim=4, ffn_dim=8)
        whole = LinattnForCausalLM(LinattnConfig(shape, tiny.VOCABULARY, 16)).eval()
        model = converted("gpt2")
        with pytest.raises(ValueError, match="state"):
            model(ids, **{CACHE: whole(ids)[CACHE]})
        with pytest.raises(ValueError, match="layer"):
            whole(ids, **{CACHE: model(ids)[CACHE]})


def test_another_attn_implementation_is_refused(kind: str) -> None:
    model = converted(kind)
    model.set_attn_implementation("sdpa")

    with pytest.raises(ValueError, match="attn_implementation"):
        model(**batches(1)[0])
