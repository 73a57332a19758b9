"""LinattnForCausalLM: transformers' generation is our own, token for token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs the extra [transformers]")

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    pipeline,
)

from linattn_models import AutoregressiveTransformer, MixtureOfLogistics
from linattn_models.huggingface import (
    LinattnConfig,
    LinattnForCausalLM,
    convert,
    from_transformers,
)
from linattn_models.huggingface.cache import CACHE
from tests.models.huggingface import tiny
from tests.models.huggingface.tiny import LEFT, ROWS, padded, prompts, real
from tests.models.tiny import tiny_config

VOCABULARY, ROOM = 5, 48
PAIR = torch.tensor([[1, 2]])


def ours(attention: str = "linear", **fields: Any) -> AutoregressiveTransformer:
    torch.manual_seed(1)
    model = AutoregressiveTransformer(tiny_config(attention, **fields), VOCABULARY, ROOM)
    return tiny.enlarge(model, 4).double().eval()


def wrapped(attention: str = "linear", **fields: Any) -> LinattnForCausalLM:
    return LinattnForCausalLM.from_linattn(ours(attention, **fields), pad_token_id=0)


def continued(model: AutoregressiveTransformer, row: Tensor, new: int) -> list[int]:
    """The row and so many tokens that our own greedy generation adds."""
    tokens = model.generate(prefix=row[None], length=len(row) + new, temperature=0.0)
    return tokens[0].tolist()


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_greedy_generation_of_left_padded_prompts_is_our_own(attention: str) -> None:
    model = wrapped(attention)

    out = model.generate(**LEFT, max_new_tokens=12, do_sample=False)

    for row, produced in zip(ROWS, out, strict=True):
        assert produced[6 - len(row) :].tolist() == continued(model.model, row, 12)
    assert len({tuple(row[6:].tolist()) for row in out}) > 1


@pytest.mark.parametrize("stop", [None, 4])
def test_beams_that_compare_sums_are_those_of_our_own_search(stop: int | None) -> None:
    model = wrapped()
    settings = {"max_new_tokens": 8, "num_beams": 4, "do_sample": False, "length_penalty": 0.0}

    out = model.generate(**LEFT, **settings, eos_token_id=stop, early_stopping=False)

    for row, produced in zip(ROWS, out, strict=True):
        best = model.model.beam_search(
            num_beams=4, prefix=row[None], length=len(row) + 8, stop_tokens=stop
        ).tokens[0, 0]
        best = best[best >= 0]  # -1 pads what has ended; transformers uses another token
        assert len(best) == len(row) + 8 or best[-1] == stop
        assert produced[6 - len(row) :][: len(best)].tolist() == best.tolist()


@pytest.mark.parametrize("side", ["left", "right", "between"])
def test_padding_is_exact(side: str) -> None:
    model = wrapped()
    outer = "right" if side == "between" else side
    batch = padded(ROWS, outer)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    places = [torch.arange(6)[real(row, 6, outer)] for row in ROWS]
    if side == "between":
        places[2] = torch.tensor([0, 3, 5])
        ids[2] = torch.tensor([2, 0, 0, 2, 0, 4])
        mask[2] = torch.tensor([1, 0, 0, 1, 0, 1])

    logits = model(input_ids=ids, attention_mask=mask).logits
    sum(x[p].square().sum() for x, p in zip(logits, places, strict=True)).backward()
    got = {name: x.grad.clone() for name, x in model.named_parameters()}
    model.zero_grad()
    for row, x, place in zip(ROWS, logits, places, strict=True):
        alone = model(row[None]).logits[0]
        torch.testing.assert_close(x[place], alone, rtol=1e-9, atol=1e-9)
        alone.square().sum().backward()

    for name, parameter in model.named_parameters():
        torch.testing.assert_close(got[name], parameter.grad, rtol=1e-8, atol=1e-8, msg=name)


def test_logits_and_loss_are_those_of_our_own_model() -> None:
    model = wrapped().train()
    tokens = torch.tensor([[1, 2, 3, 4], [4, 0, 0, 2]])

    out = model(tokens, labels=tokens)

    assert out.past_key_values is None  # in training no state is kept
    torch.testing.assert_close(out.logits[:, :-1], model.model(tokens)[:, 1:])
    wanted = -model.model.log_probs(tokens)[:, 1:].mean()
    torch.testing.assert_close(out.loss.double(), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
def test_as_many_tokens_as_positions_have_logits(side: str) -> None:
    model = wrapped()
    rows = [torch.arange(ROOM) % VOCABULARY, torch.arange(20) % VOCABULARY]
    batch = prompts(rows, side)

    out = model(**batch)

    assert getattr(out, CACHE) is None
    for index, row in enumerate(rows):
        got = out.logits[index, real(row, ROOM, side)][:-1]
        torch.testing.assert_close(got, model.model(row[None])[0, 1:])
    with pytest.raises(ValueError, match="length"):
        model.generate(rows[0][None], max_new_tokens=1)


@pytest.mark.parametrize("window_size", [None, 0, 4])
def test_a_converted_model_is_loaded_by_the_auto_classes(
    window_size: int | None, tmp_path: Path
) -> None:
    teacher = tiny.llama(eos_token_id=3)
    teacher.generation_config.max_new_tokens = 12
    student = teacher if window_size is None else convert(teacher, window_size=window_size)
    LinattnForCausalLM.from_transformers(student).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)

    rows = [tiny.tokens(1, length, seed=length)[0] for length in (7, 3, 5)]
    batch = prompts(rows)
    assert isinstance(model, LinattnForCausalLM) and model.dtype == torch.float64
    out = model.generate(**batch, do_sample=False)
    assert torch.equal(out, student.generate(**batch, do_sample=False))


def test_a_pipeline_and_a_trainer_take_the_folder_of_a_converted_model(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{token}": token for token in range(tiny.VOCABULARY)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    student = convert(tiny.llama().float(), window_size=3)
    folder = str(tmp_path / "model")
    LinattnForCausalLM.from_transformers(student).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0").save_pretrained(folder)

    generate = pipeline("text-generation", folder)
    (answer,) = generate("w1 w2 w3", max_new_tokens=5, do_sample=False, return_full_text=False)

    wanted = student.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=5, do_sample=False)
    assert answer["generated_text"].split() == [f"w{x}" for x in wanted[0, 3:].tolist()]
    pytest.importorskip("accelerate")
    rows = [{"input_ids": x, "labels": x} for x in tiny.tokens(6, 8)]
    settings = TrainingArguments(
        str(tmp_path / "run"), max_steps=4, per_device_train_batch_size=6, learning_rate=1e-2,
        report_to=[], disable_tqdm=True, use_cpu=True, save_strategy="no",
    )  # fmt: skip
    trainer = Trainer(generate.model, settings, train_dataset=rows)
    before = trainer.evaluate(rows)["eval_loss"]
    trainer.train()
    assert trainer.evaluate(rows)["eval_loss"] < before


@pytest.mark.parametrize("attention", ["linear", "softmax", "windowed"])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_left_padded_prompts_are_read_in_chunks(attention: str, size: int) -> None:
    """Of which some hold nothing but padding of a row."""
    for model in (wrapped(attention), LinattnForCausalLM.from_transformers(tiny.llama())):
        options = {"max_new_tokens": 9, "do_sample": False}
        out = model.generate(**LEFT, prefill_chunk_size=size, **options)
        assert torch.equal(out, model.generate(**LEFT, **options))


@pytest.mark.parametrize("start", [True, False])
def test_padding_after_a_state_is_left_out(start: bool) -> None:
    model = wrapped() if start else LinattnForCausalLM.from_transformers(tiny.llama())
    first, second = torch.tensor([[1, 2], [0, 3]]), torch.tensor([[0, 4, 0, 2], [1, 0, 3, 0]])
    masks = torch.tensor([[1, 1], [0, 1]]), torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]])
    cache = DynamicCache()
    model(first, attention_mask=masks[0], **{CACHE: cache})
    got = model(second, attention_mask=torch.cat(masks, 1), **{CACHE: cache}).logits
    for row, tokens in enumerate(([1, 2, 4, 2], [3, 1, 3])):
        wanted = model(torch.tensor([tokens])).logits[0, -2:]
        torch.testing.assert_close(got[row][masks[1][row].bool()], wanted)


def test_it_is_saved_and_loaded_by_the_auto_classes(tmp_path: Path) -> None:
    model = wrapped(feature_map="favor", feature_map_options={"num_features": 6})
    tokens = torch.tensor([[1, 2, 3]])
    model.save_pretrained(tmp_path)

    assert isinstance(AutoConfig.from_pretrained(tmp_path), LinattnConfig)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)

    assert isinstance(loaded, LinattnForCausalLM)
    assert loaded.config.pad_token_id == 0
    assert "import linattn_models.huggingface" in (tmp_path / "README.md").read_text()
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_trained_decay_is_loaded_as_it_was_saved(dtype: torch.dtype, tmp_path: Path) -> None:
    model = wrapped(decay="learned")
    decays = [name for name in model.state_dict() if name.endswith("decay.logits")]
    with torch.no_grad():
        for name in decays:
            model.get_parameter(name).div_(3)  # no float32 holds a third
    model.to(dtype).save_pretrained(tmp_path)

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)

    assert len(decays) == 2
    for name in decays:
        weight = loaded.get_parameter(name)
        assert weight.dtype == torch.promote_types(dtype, torch.float32)
        assert torch.equal(weight.double(), model.get_parameter(name).double())


def test_device_map_keeps_the_model_whole() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = wrapped()
    nowhere_whole = {0: "1KB", "cpu": "1GB"}

    devices = accelerate.infer_auto_device_map(
        model, nowhere_whole, no_split_module_classes=model._no_split_modules
    )

    assert set(devices.values()) == {"cpu"}


def test_half_precision_with_sinusoidal_positions(tmp_path: Path) -> None:
    model = AutoregressiveTransformer(tiny_config(), VOCABULARY, 8, "sinusoidal")
    LinattnForCausalLM.from_linattn(model).save_pretrained(tmp_path)

    half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)

    assert half(PAIR).logits.isfinite().all()


def test_a_new_model_has_the_weights_that_ours_are_drawn_with() -> None:
    config = LinattnConfig(tiny_config(), VOCABULARY, ROOM)
    torch.manual_seed(3)
    new = LinattnForCausalLM(config)
    torch.manual_seed(3)
    wanted = AutoregressiveTransformer(tiny_config(), VOCABULARY, ROOM).state_dict()

    assert all(torch.equal(wanted[name], x) for name, x in new.model.state_dict().items())


@pytest.mark.parametrize("implementation", tiny.OTHER_CACHES)
def test_other_caches_hold_the_state_too(implementation: str) -> None:
    settings = {"max_new_tokens": 6, "do_sample": False}

    out = wrapped().generate(**LEFT, cache_implementation=implementation, **settings)

    assert torch.equal(out, wrapped().generate(**LEFT, **settings))


def test_lsh_runs_all_tokens_again() -> None:
    model = wrapped("lsh-1")
    prompt = torch.tensor([[1, 2, 3]])

    out = model.generate(prompt, max_new_tokens=6, do_sample=False, use_cache=False)

    assert model(prompt).past_key_values is None
    alone = model.model.generate(prefix=prompt, length=9, temperature=0.0, method="rerun")
    assert torch.equal(out, alone)
    with pytest.raises(ValueError, match="use_cache"):
        model.generate(prompt, max_new_tokens=2)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@torch.no_grad()
def test_lora_of_a_tied_embedding_adapts_both_its_uses() -> None:
    peft = pytest.importorskip("peft", reason="LoRA needs peft")
    model, tokens = wrapped(tie_embeddings=True), torch.tensor([[1, 2, 3, 4]])
    assert model.config.tie_word_embeddings
    plain = model(tokens).logits
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["embeddings.0"]))
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            weight.normal_()

    before = adapted(input_ids=tokens).logits
    merged = adapted.merge_and_unload()

    assert not torch.allclose(before, plain, atol=0.1)
    torch.testing.assert_close(merged(tokens).logits, before)
    assert merged.get_output_embeddings().weight is merged.get_input_embeddings().weight


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "name"),
        [({"input_ids": PAIR, "inputs_embeds": PAIR}, "inputs_embeds"),
         ({"input_ids": PAIR, "position_ids": PAIR}, "position_ids"),
         ({"labels": PAIR}, "input_ids"),
         ({"inputs_embeds": torch.ones(1, 2, 8)}, "inputs_embeds"),
         ({"input_ids": PAIR, "attention_mask": [[1, 1]]}, "attention_mask"),
         ({"input_ids": PAIR, "attention_mask": torch.ones(1, 3)}, "shape"),
         ({"input_ids": torch.zeros(1, ROOM + 1, dtype=torch.int64)}, "length")],
    )  # fmt: skip
    def test_wrong_arguments(self, arguments: dict[str, Any], name: str) -> None:
        with pytest.raises((TypeError, ValueError), match=name):
            wrapped()(**arguments)

    def test_tied_embeddings_of_a_model_without_them(self) -> None:
        with pytest.raises(ValueError, match="tie_word_embeddings"):
            LinattnConfig(tiny_config(), 5, ROOM, tie_word_embeddings=True)

    def test_paged_caches(self) -> None:
        model = wrapped()
        with pytest.raises(NotImplementedError, match="ContinuousBatch"):
            model.generate_batch([[1, 2]], max_new_tokens=2)
        with pytest.raises(NotImplementedError, match="ContinuousBatch"):
            model.generate(PAIR, cache_implementation="paged", max_new_tokens=2)

    def test_an_assistant(self) -> None:
        prompt, settings = tiny.tokens(1, 3), {"max_new_tokens": 9, "do_sample": False}
        assistant = LinattnForCausalLM.from_linattn(from_transformers(tiny.llama()))
        with pytest.raises(ValueError, match="assistant"):
            tiny.llama(num_hidden_layers=1).generate(prompt, assistant_model=assistant, **settings)
        with pytest.raises(ValueError, match="assisted"):
            assistant.generate(prompt, assistant_model=tiny.llama(), **settings)

    def test_offloaded_weights(self) -> None:
        model = LinattnForCausalLM.from_linattn(ours().to("meta"))
        with pytest.raises(ValueError, match="offload"):
            model(PAIR)

    @pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=str)
    def test_right_padded_prompts(self, dtype: torch.dtype) -> None:
        right = padded(ROWS, "right")
        mask = right["attention_mask"].to(dtype)
        with pytest.raises(ValueError, match="row 1"):
            wrapped().generate(right["input_ids"], attention_mask=mask, max_new_tokens=2)

    @pytest.mark.parametrize("options", [{}, {"num_beams": 2}])
    def test_a_prompt_without_tokens(self, options: dict[str, Any]) -> None:
        ids, mask = torch.tensor([[1, 2], [0, 0]]), torch.tensor([[1, 1], [0, 0]])
        with pytest.raises(ValueError, match=r"row [12]"):
            wrapped().generate(ids, attention_mask=mask, max_new_tokens=2, **options)

    def test_caches_of_another_model(self) -> None:
        cache, keys = DynamicCache(), torch.ones(1, 2, 3, 4)
        cache.update(keys, keys, 0)
        with pytest.raises(ValueError, match="keys and values"):
            wrapped()(PAIR, past_key_values=cache)
        cache = wrapped(num_heads=1, head_dim=8)(PAIR).past_key_values
        with pytest.raises(ValueError, match="model"):
            wrapped()(PAIR, past_key_values=cache)
        with pytest.raises(ValueError, match="cache"):
            cache.update(keys, keys, 0)

    def test_taking_tokens_back(self) -> None:
        model = wrapped()
        with pytest.raises(ValueError, match="take back"):
            model(PAIR).past_key_values.crop(1)
        with pytest.raises(ValueError, match="stateful"):
            model.generate(PAIR, assistant_model=wrapped())

    def test_a_head_without_logits(self) -> None:
        model = AutoregressiveTransformer(tiny_config(), MixtureOfLogistics(2), ROOM)
        with pytest.raises(ValueError, match="MixtureOfLogistics"):
            LinattnForCausalLM.from_linattn(model)

    def test_another_vocabulary(self) -> None:
        with pytest.raises(NotImplementedError, match="vocab_size"):
            wrapped().resize_token_embeddings(7)

    def test_a_configuration_of_no_model(self) -> None:
        with pytest.raises(ValueError, match="num_layers"):
            LinattnConfig({"num_layers": 0, "num_heads": 2, "head_dim": 4, "ffn_dim": 8})


@pytest.mark.parametrize(
    ("attention", "positions", "room"),
    [("linear", "none", 8), ("linear", "sinusoidal", None), ("softmax", "none", None)],
)
def test_generation_beyond_max_length_where_positions_have_no_end(
    attention: str, positions: str, room: int | None
) -> None:
    model = AutoregressiveTransformer(tiny_config(attention), VOCABULARY, room, positions).eval()
    prompt = torch.tensor([[1, 2, 3]])

    out = LinattnForCausalLM.from_linattn(model, pad_token_id=0).generate(
        prompt, max_new_tokens=20, do_sample=False
    )

    assert torch.equal(out, model.generate(prefix=prompt, length=23, temperature=0.0))


@torch.no_grad()
def test_a_refused_call_leaves_the_cache_as_it_was() -> None:
    model = wrapped()
    cache = model(LEFT["input_ids"][:1], use_cache=True).past_key_values
    token = torch.tensor([[1]])

    for refused in (torch.ones(1, ROOM, dtype=torch.int64), token + VOCABULARY, token[:, :0]):
        with pytest.raises(ValueError, match="expected"):
            model(refused, past_key_values=cache)

    fresh = model(LEFT["input_ids"][:1], use_cache=True).past_key_values
    found, wanted = (model(token, past_key_values=x).logits for x in (cache, fresh))
    torch.testing.assert_close(found, wanted)


def test_the_loss_of_padded_rows_is_that_of_the_tokens_alone() -> None:
    model = wrapped()
    lengths = [len(row) for row in ROWS if len(row) > 1]
    rows = [row for row in ROWS if len(row) > 1]
    losses = [model(row[None], labels=row[None]).loss for row in rows]
    alone = sum(x * (n - 1) for x, n in zip(losses, lengths, strict=True)) / (sum(lengths) - 2)

    for side in ("left", "right"):
        batch = padded(rows, side)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        labels = ids.masked_fill(mask == 0, -100)
        loss = model(ids, attention_mask=mask, labels=labels).loss
        torch.testing.assert_close(loss, alone)


@pytest.mark.parametrize("side", ["left", "right"])
def test_parts_of_a_batch_add_up_to_the_mean_over_the_labels_that_trainer_counts(side: str) -> None:
    model, batch = wrapped(), padded(ROWS, side)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    labels = ids.masked_fill(mask == 0, -100)
    count = int((labels[:, 1:] != -100).sum())

    parts = [
        model(ids[i], attention_mask=mask[i], labels=labels[i], num_items_in_batch=count).loss
        for i in (slice(0, 1), slice(1, 3))
    ]

    # A row's first token counts after padding alone.
    begins = [int(side == "right" or len(row) == 6) for row in ROWS]
    losses = [
        -model.model.log_probs(row[None])[0, first:]
        for row, first in zip(ROWS, begins, strict=True)
    ]
    assert len(torch.cat(losses)) == count
    torch.testing.assert_close(sum(parts), torch.cat(losses).mean().float())


def test_without_a_start_vector_a_first_token_after_padding_has_no_loss() -> None:
    model = LinattnForCausalLM.from_transformers(tiny.llama())
    ids = torch.tensor([[0, 0, 7, 8, 9]])
    labels = ids.masked_fill(ids == 0, -100)
    loss = model(ids, attention_mask=(ids > 0).long(), labels=labels, num_items_in_batch=3).loss
    torch.testing.assert_close(loss, model(ids[:, 2:], labels=ids[:, 2:]).loss * 2 / 3)


def test_a_folder_without_some_weights_is_refused(tmp_path: Path) -> None:
    wrapped().save_pretrained(tmp_path)

    with pytest.raises(ValueError, match="weights"):
        LinattnForCausalLM.from_pretrained(
            tmp_path, max_position_embeddings=ROOM + 1, ignore_mismatched_sizes=True
        )
