"""LinattnForCausalLM steps by a compiled decoder where nothing needs a gradient."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs the extra [transformers]")

from transformers import DynamicCache

from linattn_core import use_backend
from linattn_models import AutoregressiveTransformer
from linattn_models.decoding.compiled import FEWEST_STEPS
from linattn_models.decoding.compiled_decoder import CompiledDecoder
from linattn_models.huggingface import LinattnForCausalLM
from linattn_models.huggingface.steps import Steps
from tests.models.decoding.decoders import close, needs_cpu_backend
from tests.models.huggingface.tiny import LEFT, ROWS, enlarge
from tests.models.tiny import tiny_config

pytestmark = needs_cpu_backend

VOCABULARY, LONG = 7, 64
MODERN = {
    "norm": "rms", "ffn": "swiglu", "bias": False, "tie_embeddings": True, "rotary": True,
    "num_kv_heads": 1, "decay": "learned",
}  # fmt: skip


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each step of a compiled decoder."""
    steps: list[int] = []
    step = CompiledDecoder.step

    def counting(self: CompiledDecoder, *arguments: Any) -> Any:
        steps.append(1)
        return step(self, *arguments)

    monkeypatch.setattr(CompiledDecoder, "step", counting)
    return steps


def wrapped(
    room: int | None = LONG, positions: str | None = None, **fields: Any
) -> LinattnForCausalLM:
    torch.manual_seed(1)
    model = AutoregressiveTransformer(tiny_config(**fields), VOCABULARY, room, positions).eval()
    return LinattnForCausalLM.from_linattn(enlarge(model, 3), pad_token_id=0)


def begun(model: LinattnForCausalLM) -> DynamicCache:
    """A cache from which the next step is compiled."""
    cache = model(**LEFT).past_key_values
    with torch.no_grad():
        for _ in range(FEWEST_STEPS):
            stepped(model, cache)
    return cache


def stepped(model: LinattnForCausalLM, cache: DynamicCache) -> Tensor:
    logits: Tensor = model(torch.tensor([[1], [4], [2]]), past_key_values=cache).logits
    return logits


def in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Steps, "choose", lambda *_: None)


@pytest.mark.parametrize("fields", [{}, MODERN, {"decay": "fixed"}, {"norm_first": False}])
def test_logits_are_those_of_the_model(fields: dict[str, Any], compiled: list[int]) -> None:
    model, cache = wrapped(**fields), DynamicCache()
    tokens = torch.randint(VOCABULARY, (3, 40))
    wanted = model(torch.cat([LEFT["input_ids"], tokens], 1)).logits[:1]  # a row without padding

    with torch.no_grad():
        model(**LEFT, past_key_values=cache)
        got = [model(x, past_key_values=cache).logits for x in tokens.split(1, 1)]

    close(torch.cat(got, 1)[:1], wanted[:, 6:])
    assert len(compiled) == 40 - FEWEST_STEPS


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        (MODERN, {}),
        ({}, {"num_beams": 3}),
        ({}, {"do_sample": True, "num_return_sequences": 2}),
    ],
)
def test_generation_is_that_of_the_model(
    fields: dict[str, Any],
    settings: dict[str, Any],
    compiled: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, tokens = wrapped(**fields), []
    for _ in range(2):
        torch.manual_seed(0)
        tokens.append(model.generate(**LEFT, max_new_tokens=40, **settings))
        in_eager(monkeypatch)

    assert torch.equal(*tokens)
    assert len(compiled) == 39 - FEWEST_STEPS


def test_weights_are_packed_when_it_pays_and_kept(compiled: list[int]) -> None:
    model = wrapped()
    for _ in range(2):
        model.generate(**LEFT, max_new_tokens=FEWEST_STEPS)
    assert not compiled
    begun(model)
    stepped_before = len(compiled)
    model.generate(**LEFT, max_new_tokens=FEWEST_STEPS + 2)
    assert len(compiled) == stepped_before + 1  # packed by the last step

    model.generate(**LEFT, max_new_tokens=5)

    assert len(compiled) == stepped_before + 1 + 4


def loaded(model: LinattnForCausalLM) -> None:
    model.load_state_dict({name: -2 * x for name, x in model.state_dict().items()})


def hooked(model: LinattnForCausalLM) -> None:
    model.model.output.register_forward_hook(lambda module, args, output: output * 2)


@pytest.mark.parametrize("change", [loaded, hooked])
@torch.no_grad()
def test_a_change_between_two_steps_is_seen(
    change: Callable[[LinattnForCausalLM], None],
    compiled: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = wrapped()
    cache = begun(model)
    before = stepped(model, cache)
    assert compiled == [1]
    other = copy.deepcopy(cache)

    change(model)

    got = [stepped(model, cache) for _ in range(2 * FEWEST_STEPS)]
    assert len(compiled) == (1 if change is hooked else 1 + FEWEST_STEPS)
    in_eager(monkeypatch)
    wanted = [stepped(model, other) for _ in range(2 * FEWEST_STEPS)]
    close(torch.cat(got), torch.cat(wanted))
    assert not torch.allclose(got[0], before)


@torch.no_grad()
def test_a_write_that_no_version_counts_is_seen_in_the_next_generation() -> None:
    model = wrapped()
    prompt = {name: x[:1] for name, x in LEFT.items()}
    model.generate(**prompt, max_new_tokens=40)
    model.model.output.weight.data.mul_(-3.0)

    out = model.generate(**prompt, max_new_tokens=40, do_sample=False)

    wanted = model.model.generate(prefix=ROWS[0][None], length=46, temperature=0, decoder="eager")
    assert torch.equal(out, wanted)


def test_steps_with_gradients_are_the_models_own(compiled: list[int]) -> None:
    model = wrapped()
    cache = begun(model)

    stepped(model, cache).sum().backward()

    assert not compiled
    assert model.model.output.weight.grad is not None
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert stepped(model, cache).dtype == torch.bfloat16
    with torch.no_grad():
        stepped(model.train(), cache)
        assert not compiled
        stepped(model.eval(), cache)
        assert compiled == [1]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@torch.no_grad()
def test_a_copy_of_a_cache_continues_by_itself(copied: Callable[[Any], Any]) -> None:
    model = wrapped()
    cache = begun(model)
    stepped(model, cache)
    other = copied(cache)

    got, wanted = ([stepped(model, x) for _ in range(3)] for x in (other, cache))

    close(torch.cat(got), torch.cat(wanted))


@torch.no_grad()
def test_it_steps_past_the_rows_of_a_table(
    compiled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("linattn_models.tokens.positions._FEWEST_ROWS", 32)
    model = wrapped(None, "sinusoidal")

    out = model.generate(LEFT["input_ids"], max_new_tokens=150, do_sample=False)

    in_eager(monkeypatch)
    wanted = model.generate(LEFT["input_ids"], max_new_tokens=150, do_sample=False)
    assert torch.equal(out, wanted) and len(compiled) == 149 - FEWEST_STEPS


@torch.no_grad()
def test_a_refused_step_leaves_the_cache_as_it_was(compiled: list[int]) -> None:
    model = wrapped()
    cache = begun(model)
    other = copy.deepcopy(cache)

    for refused in (torch.full((3, 1), VOCABULARY), torch.ones(2, 1, dtype=torch.int64)):
        with pytest.raises(ValueError, match="expected"):
            model(refused, past_key_values=cache)

    got = stepped(model, cache)
    assert compiled
    close(got, stepped(model, other))


@pytest.fixture(params=["float64", "softmax", "reference"])
def uncompilable(request: pytest.FixtureRequest) -> Iterator[LinattnForCausalLM]:
    if request.param == "reference":
        with use_backend("reference"):
            yield wrapped()
    else:
        softmax = request.param == "softmax"
        yield wrapped(attention="softmax") if softmax else wrapped().double()


def test_a_model_without_a_compiled_step_steps_by_itself(
    uncompilable: LinattnForCausalLM, compiled: list[int]
) -> None:
    out = uncompilable.generate(**LEFT, max_new_tokens=2 * FEWEST_STEPS, do_sample=False)

    assert out.shape == (3, 6 + 2 * FEWEST_STEPS) and not compiled


def test_it_generates_in_inference_mode(compiled: list[int]) -> None:
    model = wrapped()
    with torch.inference_mode():
        out = model.generate(**LEFT, max_new_tokens=40, do_sample=False)
    assert compiled
    assert torch.equal(out, model.generate(**LEFT, max_new_tokens=40, do_sample=False))
