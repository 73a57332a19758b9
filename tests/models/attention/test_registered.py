"""An attention from outside of the packages: the gated delta rule of the guide."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linattn_core import LinearAttentionState
from linattn_core.state import TensorTuple
from linattn_models import (
    Attention,
    AutoregressiveTransformer,
    CannotCompile,
    ContinuousBatch,
    DecodingState,
    Linear,
    Mixer,
    Request,
    SamplingParams,
    TransformerConfig,
    compile_decoder,
    load,
    register_attention,
    save,
)
from linattn_models.attention import config as kinds
from linattn_models.attention import registry
from linattn_models.attention.registry import build_mixer
from linattn_models.state import files
from tests.models.decoding.decoders import run_batch
from tests.models.tiny import random_tokens, tiny_config, tiny_model, tiny_transformer

GUIDE = Path(__file__).parents[3] / "docs/your-model.md"


def read_guide() -> ModuleType:
    """The module that the guide's cell is."""
    cells = re.findall(r"^```\{code-cell\}\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    (cell,) = [cell for cell in cells if "register_attention(GatedDelta" in cell]
    module = ModuleType("gated_delta")
    module.__dict__.update(torch=torch, nn=nn, F=F)
    sys.modules[module.__name__] = module
    exec(compile(cell, str(GUIDE), "exec"), module.__dict__)
    return module


guide = read_guide()


def delta(**fields: Any) -> Any:
    return guide.GatedDelta(**{"chunk": 3, **fields})


@pytest.fixture
def open_registry() -> Iterator[None]:
    """Forgets what a test registers."""
    tables: list[dict[Any, Any]] = [kinds.KINDS, registry._MIXERS, files._KINDS]
    before = [dict(table) for table in tables]
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)


def by_recurrence(mixer: Mixer, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T; o_t = S_t^T q_t."""
    parts = (part.unbind(2) for part in mixer.project(x))
    outs = []
    for q, k, v, gates in zip(*parts, strict=True):
        a, b = gates[..., 0].exp()[..., None, None], gates[..., 1][..., None, None]
        outer = k.unsqueeze(-1) * k.unsqueeze(-2)
        s = a * (torch.eye(k.shape[-1]) - b * outer) @ s
        s = s + b * k.unsqueeze(-1) * v[..., None, :]
        outs.append((s.mT @ q.unsqueeze(-1)).squeeze(-1))
    return mixer.join(torch.stack(outs, 2)), s


def test_sequence_and_steps_are_the_recurrence() -> None:
    model = tiny_transformer(delta())
    mixer: Any = model.blocks[0].mixer
    x = torch.randn(2, 8, 8, dtype=torch.float64)
    zero = mixer.initial_state(2, None, x.device, x.dtype)
    expected, final = by_recurrence(mixer, x, zero.s)
    torch.testing.assert_close(mixer(x), expected)
    query, key, value, gates = mixer.project(x)
    _, state = mixer.attend_and_keep(query, key, value, None, None, None, None, gates)
    torch.testing.assert_close(state.s, final)
    state = model.initial_state(2)
    steps = []
    for position in range(8):
        y, state = model.step(x[:, position], state)
        steps.append(y)
    torch.testing.assert_close(torch.stack(steps, 1), model(x))
    assert torch.autograd.gradcheck(mixer, (x[:, :4].requires_grad_(),), fast_mode=True)


def test_ragged_prompts_and_padding_are_each_alone() -> None:
    model, x = tiny_transformer(delta()), torch.randn(3, 7, 8, dtype=torch.float64)
    lengths = torch.tensor([7, 0, 4])
    outputs, state = model.prefill(x, lengths)
    alone, own = model.prefill(x[2:, :4])
    torch.testing.assert_close(outputs[2:, :4], alone)
    torch.testing.assert_close(state.layers[1][0][2:], own.layers[1][0])
    after, _ = model.prefill(x[2:, 4:], state=own)
    torch.testing.assert_close(after, model(x[2:])[:, 4:])
    mask = torch.arange(7) >= 3
    torch.testing.assert_close(model(x, attn_mask=mask.expand(3, 7))[:, 3:], model(x[:, 3:]))


def test_models_train_generate_and_are_saved(tmp_path: Path) -> None:
    model = tiny_model(delta())
    model.loss(random_tokens(model, 2, 9)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    prompts = [[1, 2, 3], [4]]
    drawn = model.generate(prefix=prompts, length=9, seeds=3)
    rerun = model.generate(prefix=prompts, length=9, seeds=3, method="rerun")
    assert torch.equal(drawn, rerun)
    save(model, tmp_path)
    loaded = load(tmp_path)
    assert isinstance(loaded, AutoregressiveTransformer)
    assert loaded.config == model.config
    assert torch.equal(loaded.generate(prefix=prompts, length=9, seeds=3), drawn)
    with pytest.raises(CannotCompile, match="gated-delta"):
        compile_decoder(model)


def test_states_are_files_and_rows(tmp_path: Path) -> None:
    model, x = tiny_transformer(delta()), torch.randn(2, 5, 8, dtype=torch.float64)
    _, state = model.prefill(x[:, :4])
    state.save(tmp_path / "state")
    again = DecodingState.load(tmp_path / "state")
    assert all(type(layer) is guide.DeltaState for layer in again.layers)
    rows = DecodingState.cat([again.index_select([1]), again.index_select([0])])
    y, _ = model.step(x[[1, 0], 4], rows)
    torch.testing.assert_close(y, model(x)[[1, 0], 4])
    assert state.to(torch.bfloat16).layers[0][0].dtype == torch.float32


class _Last(NamedTuple):
    last: Tensor
    before: Tensor


class ShiftState(TensorTuple, _Last):
    """The last value and the one before."""


@dataclass(frozen=True)
class Shift(Attention):
    kind: ClassVar[str] = "shift"


class ShiftMixer(Mixer):
    """Reads two values back; a step returns a tensor of the old state in another place."""

    def __init__(self, attention: Shift, *sizes: Any, **settings: Any) -> None:
        super().__init__(*sizes, **settings)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
        return query + F.pad(value, (0, 0, 2, 0))[:, :, :-2]

    def initial_state(self, batch: int, max_length: Any, device: Any, dtype: Any) -> ShiftState:
        shape = (batch, self.num_heads, self.head_dim)
        return ShiftState(*torch.zeros(2, *shape, device=device, dtype=dtype))

    def attend_and_keep(
        self, query: Tensor, key: Tensor, value: Tensor, lengths: Any, *_: Any
    ) -> tuple[Tensor, ShiftState]:
        padded = F.pad(value, (0, 0, 2, 0))
        ends = torch.full((len(value),), value.shape[2]) if lengths is None else lengths
        rows = torch.arange(len(value))
        state = ShiftState(padded[rows, :, ends + 1], padded[rows, :, ends])
        return self.attend(query, key, value), state

    def attend_next(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any, cursor: Any
    ) -> tuple[Tensor, ShiftState]:
        return query + state.before, ShiftState(value, state.last)


register_attention(Shift, ShiftMixer, ShiftState)


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("kind", ["delta", "shift"])
def test_a_batch_draws_what_generate_draws(rows: int, kind: str) -> None:
    """Though its steps return new states, and sequences join and leave."""
    model = tiny_model(delta() if kind == "delta" else Shift())
    batch = ContinuousBatch(model, max_num_seqs=rows, max_num_batched_tokens=64)
    prompts = [[], [3], [1, 2, 3, 4], [2, 2]]
    answers = run_batch(batch, *(Request(prompt, 9, SamplingParams(seed=5)) for prompt in prompts))
    for number, prompt in enumerate(prompts, 1):
        expected = model.generate(prefix=[prompt] if prompt else None, length=9, seeds=5)
        assert answers.tokens[number, 0] == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"is_causal": False}, "is_causal=False"),
        ({"num_kv_heads": 1}, "num_kv_heads"),
        ({"causal_block": 2}, "causal_block"),
        ({"rotary": True}, "rotary"),
    ],
)
def test_options_that_it_does_not_take_are_refused(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"'gated-delta' attention takes, got {name}"):
        tiny_config(delta(), **fields)


def test_unregistered_attention_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_registry: None
) -> None:
    save(tiny_model(delta()), tmp_path)
    _, state = tiny_transformer(delta()).prefill(torch.zeros(1, 2, 8, dtype=torch.float64))
    state.save(tmp_path / "state")
    config = TransformerConfig(1, 2, 4, 8, delta())
    monkeypatch.delitem(kinds.KINDS, "gated-delta")
    monkeypatch.delitem(files._KINDS, frozenset(["s"]))
    for bad in (lambda: load(tmp_path), lambda: TransformerConfig.from_dict(config.to_dict())):
        with pytest.raises(ValueError, match=r"'gated-delta'; .*register_attention"):
            bad()
    with pytest.raises(ValueError, match=r"GatedDelta; .*register_attention"):
        tiny_config(delta())
    with pytest.raises(ValueError, match="registers its attention"):
        DecodingState.load(tmp_path / "state")


@dataclass(frozen=True)
class Mean(Attention):
    kind = "mean"


@dataclass(frozen=True)
class Taken(Attention):
    kind = "linear"


@dataclass(frozen=True)
class Nameless(Attention):
    pass


@dataclass(frozen=True)
class Greedy(Attention):
    kind = "greedy"
    takes = frozenset({"everything"})


@dataclass
class Thawed:
    kind = "thawed"


class Undecorated(Linear):
    kind = "undecorated"


class MeanMixer(Mixer):
    """The mean of all values, and what a test wants to be wrong."""

    wrong = ""

    def __init__(self, attention: Mean, num_heads: int, head_dim: int, **settings: Any) -> None:
        super().__init__(num_heads, head_dim, **settings)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Tensor | None,
        mask: Tensor | None = None,
    ) -> Tensor:
        mean = value.cumsum(2) / torch.arange(1, value.shape[2] + 1)[:, None]
        return mean[:, :, -1] if self.wrong == "attend" else mean

    def initial_state(self, batch: int, *others: Any) -> Any:
        s = torch.zeros(batch, self.num_heads, 1, self.head_dim)
        if self.wrong == "initial_state":
            return s
        if self.wrong == "batch":
            return LinearAttentionState(s, s[0, ..., 0])
        return LinearAttentionState(s, s[..., 0])

    def attend_and_keep(
        self, query: Tensor, key: Tensor, value: Tensor, *others: Any
    ) -> tuple[Tensor, Any]:
        state = self.initial_state(len(value))
        size = state.s if self.wrong != "attend_and_keep" else state.s.mT
        return self.attend(query, key, value, None), LinearAttentionState(size, state.z)

    def attend_next(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any, cursor: Any
    ) -> tuple[Tensor, Any]:
        return (query.mT if self.wrong == "attend_next" else query), state


class NoSteps(Mixer):
    wrong = ""
    attend = MeanMixer.attend

    def __init__(self, attention: Mean, num_heads: int, head_dim: int, **settings: Any) -> None:
        super().__init__(num_heads, head_dim, **settings)


class SameFields(NamedTuple):
    z: Tensor
    s: Tensor


class SameState(TensorTuple, SameFields):
    __slots__ = ()


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ((Thawed, MeanMixer), "frozen=True"),
        ((Undecorated, MeanMixer), "frozen=True"),
        (("mean", MeanMixer), "frozen=True"),
        ((Mean(), MeanMixer), "frozen=True"),
        ((Taken, MeanMixer), "no attention has, got 'linear'"),
        ((Nameless, MeanMixer), "a name"),
        ((Greedy, MeanMixer), "everything"),
        ((Mean, nn.Linear), "derives from Mixer"),
        ((Mean, Mixer), "has attend"),
        ((Mean, MeanMixer, SameState), "LinearAttentionState has"),
        ((Mean, MeanMixer, tuple), "TensorTuple"),
        ((Mean, MeanMixer, SameFields), "TensorTuple"),
    ],
    ids=str,
)
def test_bad_registrations_are_refused(arguments: Any, wanted: str, open_registry: None) -> None:
    with pytest.raises((TypeError, ValueError), match=wanted):
        register_attention(*arguments)
    assert "mean" not in kinds.KINDS


@pytest.mark.parametrize(
    ("wrong", "wanted"),
    [
        ("attend", r"MeanMixer.attend: expected heads of shape \(1, 2, 2, 4\), got \(1, 2, 4\)"),
        ("initial_state", "MeanMixer.initial_state: expected a state of a registered class"),
        ("batch", "MeanMixer.initial_state: expected floating dtypes"),
        ("attend_and_keep", "MeanMixer.attend_and_keep: expected floating dtypes"),
        ("attend_next", r"MeanMixer.attend_next: expected heads of shape \(1, 2, 4\)"),
    ],
)
def test_wrong_results_are_refused_when_a_layer_is_built(
    wrong: str, wanted: str, monkeypatch: pytest.MonkeyPatch, open_registry: None
) -> None:
    register_attention(Mean, MeanMixer)
    build_mixer(Mean(), 2, 4, is_causal=True)
    monkeypatch.setattr(MeanMixer, "wrong", wrong)
    with pytest.raises((TypeError, ValueError), match=wanted):
        build_mixer(Mean(), 2, 4, is_causal=True)


def test_a_layer_without_steps_says_so(open_registry: None) -> None:
    register_attention(Mean, NoSteps)
    with pytest.raises(TypeError, match="a method initial_state, got none; or set cannot_step"):
        build_mixer(Mean(), 2, 4, is_causal=True)
