"""Exported to ONNX, the operator and its step are plain operators that onnxruntime runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linattn_core import (
    FeatureMap,
    LinearAttentionState,
    get_feature_map,
    linear_attention,
    linear_attention_step,
)

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed, which torch.onnx needs")

pytestmark = [
    pytest.mark.slow,
    # torch 2.13 exports through a name that it has deprecated itself.
    pytest.mark.filterwarnings("ignore::FutureWarning:copyreg"),
]
CLOSE = {"rtol": 0, "atol": 1e-5}
ANY = torch.export.Dim.DYNAMIC


class Prefill(nn.Module):
    """`linear_attention` of tensors by name, with fixed options."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, query, key, value, attn_mask=None, log_decay=None, key_lengths=None):
        masks = {"attn_mask": attn_mask, "log_decay": log_decay, "key_lengths": key_lengths}
        return linear_attention(query, key, value, **masks, **self.options)


class Step(nn.Module):
    def forward(self, query, key, value, s, z, log_decay=None):
        state = LinearAttentionState(s, z)
        return linear_attention_step(query, key, value, state, log_decay=log_decay, enable_gqa=True)


class Session:
    """An exported module as onnxruntime runs it.

    Args:
        dims: which dimensions of an argument may be of any size; by default 0 and the length.
    """

    def __init__(self, module: nn.Module, example: dict[str, Tensor], **dims: dict[int, Any]):
        shapes = {name: dims.get(name, _any_batch_and_length(x)) for name, x in example.items()}
        program = torch.onnx.export(
            module.eval(), (), kwargs=example, dynamic_shapes=shapes, dynamo=True, verbose=False
        )
        self.model = program.model_proto
        self._session = onnxruntime.InferenceSession(self.model.SerializeToString())

    def __call__(self, **tensors: Tensor) -> list[Tensor]:
        numbers = {name: x.numpy() for name, x in tensors.items()}
        return [torch.from_numpy(x) for x in self._session.run(None, numbers)]


def _any_batch_and_length(x: Tensor) -> dict[int, Any]:
    return {0: ANY, 2: ANY} if x.dim() == 4 else {0: ANY}


def tensors(batch: int, length: int, kv_heads: int = 4) -> dict[str, Tensor]:
    shapes = {"query": (batch, 4, length, 8), "key": (batch, kv_heads, length, 8)}
    shapes["value"] = (batch, kv_heads, length, 5)
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def flat(results: Any) -> list[Tensor]:
    """The tensors of a module's results, which ONNX lists one by one."""
    return [results] if isinstance(results, Tensor) else [x for y in results for x in flat(y)]


def assert_same(session: Session, module: nn.Module, arguments: dict[str, Tensor]) -> None:
    for got, wanted in zip(session(**arguments), flat(module(**arguments)), strict=True):
        torch.testing.assert_close(got, wanted, **CLOSE)


SIZES = ((2, 100), (1, 1), (3, 64), (2, 333))


def test_everything_at_once_causal() -> None:
    """Mask, decay, grouped heads and the normalizer; any batch, any length, plain operators."""
    module = Prefill(is_causal=True, enable_gqa=True, return_normalizer=True, return_state=True)

    def arguments(batch: int, length: int) -> dict[str, Tensor]:
        masked = {"attn_mask": torch.rand(batch, length) > 0.4}
        decay = {"log_decay": -3 * torch.rand(batch, 2, length)}
        decay["log_decay"][:, :, ::7] = -torch.inf
        return tensors(batch, length, kv_heads=2) | masked | decay

    lengths = {"attn_mask": {0: ANY, 1: ANY}, "log_decay": {0: ANY, 2: ANY}}
    session = Session(module, arguments(2, 100), **lengths)
    assert {node.domain for node in session.model.graph.node} == {""}
    for size in SIZES:
        assert_same(session, module, arguments(*size))


def test_everything_at_once_not_causal() -> None:
    module = Prefill(normalize=False)

    def arguments(batch: int, length: int) -> dict[str, Tensor]:
        few = {name: x / 8 for name, x in tensors(batch, length).items()}
        few["query"] = torch.randn(batch, 4, 9, 8)
        return few | {"key_lengths": torch.randint(length + 1, (batch,))}

    session = Session(module, arguments(2, 100), query={0: ANY})
    for size in SIZES:
        assert_same(session, module, arguments(*size))


@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("example", [1, 64])
def test_an_example_of_any_length_serves_every_other(example: int, decay: bool) -> None:
    """Also one within a single chunk."""
    module = Prefill(is_causal=True)

    def arguments(length: int) -> dict[str, Tensor]:
        decays = {"log_decay": -torch.rand(2, 4, length)} if decay else {}
        return tensors(2, length) | decays

    session = Session(module, arguments(example), log_decay={0: ANY, 2: ANY})
    for length in (1, 63, 64, 65, 150, 1000):
        assert_same(session, module, arguments(length))


class EveryMap(nn.Module):
    """A call with each map; a learned one is a part of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.ModuleList([get_feature_map("hedgehog", 8), get_feature_map("favor", 8)])

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        named: list[str | FeatureMap] = ["relu", "identity", "polynomial", "taylor", "favor", "rff"]
        return [
            linear_attention(query, key, value, is_causal=True, feature_map=x)
            for x in (*named, *self.maps)
        ]


def test_every_feature_map() -> None:
    """The numbers of random maps are constants of the graph."""

    def arguments(batch: int, length: int) -> dict[str, Tensor]:
        # Positive and close to one another: no denominator is near zero, whatever the map.
        return {name: x.abs() / 4 for name, x in tensors(batch, length).items()}

    module = EveryMap()
    session = Session(module, arguments(2, 70))
    assert_same(session, module, arguments(3, 90))


@pytest.mark.parametrize("decay", [None, torch.tensor([-0.1, -2.0])], ids=["sums", "decayed"])
def test_a_prefill_and_a_thousand_steps_fed_back(decay: Tensor | None) -> None:
    """Output within 1e-5; the state within 1e-5 of its size, as sums grow to thousands."""
    prefill = Prefill(is_causal=True, enable_gqa=True, return_state=True)
    start = tensors(2, 40, kv_heads=2)
    _, *state = Session(prefill, start)(**start)
    _, exact = prefill(**start)
    decays = {} if decay is None else {"log_decay": decay}

    def arguments() -> dict[str, Tensor]:
        rows = {name: x[:, :, 0] for name, x in tensors(2, 1, kv_heads=2).items()}
        return rows | {"s": state[0], "z": state[1]} | decays

    pool = {"s": {0: ANY}, "z": {0: ANY}} | {name: {} for name in decays}
    step = Session(Step(), arguments(), **pool)
    for _ in range(1000):
        given = arguments()
        out, *state = step(**given)
        wanted, exact = linear_attention_step(
            *(given[x] for x in ("query", "key", "value")), exact, log_decay=decay, enable_gqa=True
        )
        torch.testing.assert_close(out, wanted, **CLOSE)
    for got, wanted in zip(state, exact, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


class Refused(Prefill):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Any:
        if "inplace" not in self.options:
            return linear_attention(query, key, value, **self.options)
        state = LinearAttentionState.zeros(1, 4, 8, 5)
        rows = (x[:, :, 0] for x in (query, key, value))
        return linear_attention_step(*rows, state, **self.options)[0]


@pytest.mark.parametrize(
    "options",
    [{"cu_seqlens": torch.tensor([0, 2, 6])}, {"inplace": True}],
    ids=["packed", "inplace"],
)
def test_what_has_no_graph_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(torch.onnx.OnnxExporterError, match=next(iter(options))):
        torch.onnx.export(Refused(**options).eval(), tuple(tensors(1, 6).values()), dynamo=True)
