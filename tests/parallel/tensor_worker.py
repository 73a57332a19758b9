"""What each rank does in the tests of calls and layers whose heads are divided among ranks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.testing import assert_close

from linattn_core import LinearAttentionState, linear_attention, linear_attention_step
from linattn_models import (
    AutoregressiveTransformer,
    EncoderAttention,
    Linear,
    LinearAttention,
    Lsh,
    Softmax,
    TransformerConfig,
    load,
    save,
)
from linattn_models.parallel import TensorParallel
from linattn_models.weights.sharded import PARTS

CALLS: list[dict[str, Any]] = [
    {},
    {"return_state": True, "return_normalizer": True},
    {"is_causal": True},
    {"is_causal": True, "initial_state": True, "return_state": True, "log_decay": True},
    {"key_lengths": True, "feature_map": "relu"},
    {"is_causal": True, "attn_mask": True, "normalize": False},
    {"is_causal": True, "cu_seqlens": True, "return_state": True},
]
PLACES = (Replicate(), Shard(0), Shard(1), Shard(2))


def draw_call(rows: int, heads: int, kv_heads: int, options: dict[str, Any]) -> dict[str, Any]:
    """The tensors of a call, the same on each rank."""
    draw, length = torch.Generator().manual_seed(rows + heads), 6
    packed = options.get("cu_seqlens", False)
    rows = 1 if packed else rows
    sizes = {"query": (rows, heads, length, 3), "key": (rows, kv_heads, length, 3)}
    sizes |= {"value": (rows, kv_heads, length, 5)}
    x: dict[str, Any] = {
        name: torch.randn(size, generator=draw, dtype=torch.float64, requires_grad=True)
        for name, size in sizes.items()
    }
    if options.get("initial_state"):
        s = torch.rand(rows, kv_heads, 3, 5, generator=draw, dtype=torch.float64)
        x["initial_state"] = LinearAttentionState(s.requires_grad_(), s[..., 0].detach())
    if options.get("log_decay"):
        decay = -torch.rand(rows, kv_heads, length, generator=draw, dtype=torch.float64)
        x["log_decay"] = decay.requires_grad_()
    if options.get("key_lengths"):
        x["key_lengths"] = torch.arange(rows) + 2
    if options.get("attn_mask"):
        x["attn_mask"] = torch.rand(rows, length, generator=draw) > 0.3
    if packed:
        x["cu_seqlens"] = torch.tensor([0, 2, 6])
    others = {name: value for name, value in options.items() if name not in x}
    return {**x, **others, "enable_gqa": kv_heads != heads}


def distribute(x: Any, mesh: DeviceMesh, place: Any) -> Any:
    if isinstance(x, LinearAttentionState):
        return LinearAttentionState(*(distribute(part, mesh, place) for part in x))
    if not isinstance(x, Tensor):
        return x
    whole = x.ndim <= (place.dim if isinstance(place, Shard) else 0) or x.ndim == 1
    return distribute_tensor(x, mesh, [Replicate() if whole else place])


def results_and_gradients(call: dict[str, Any]) -> list[Tensor]:
    """All results, and the gradients of some function of them."""
    results = linear_attention(**call)
    results = results if isinstance(results, tuple) else (results,)
    flat = [part for x in results for part in (x if isinstance(x, tuple) else (x,))]
    leaves = [x for x in call.values() if isinstance(x, Tensor) and x.requires_grad]
    if "initial_state" in call:
        leaves.append(call["initial_state"].s)
    sum((x * x).sum() for x in flat).backward()  # type: ignore[union-attr]
    whole = [*flat, *(x.grad for x in leaves)]
    return [x.full_tensor() if isinstance(x, DTensor) else x for x in whole]


def check_calls(ranks: int, mesh: DeviceMesh) -> None:
    """A call of divided tensors is the whole call, however they are divided."""
    for options in CALLS:
        for rows, heads, kv_heads in ((ranks, 2 * ranks, ranks), (3, ranks + 1, 1)):
            call = draw_call(rows, heads, kv_heads, options)
            wanted = results_and_gradients(call)
            for place in PLACES:
                divided = {name: distribute(x, mesh, place) for name, x in call.items()}
                divided = {name: as_leaf(x) for name, x in divided.items()}
                for got, whole in zip(results_and_gradients(divided), wanted, strict=True):
                    assert_close(got, whole, rtol=1e-12, atol=1e-12)


def as_leaf(x: Any) -> Any:
    if isinstance(x, LinearAttentionState):
        return LinearAttentionState(*map(as_leaf, x))
    return x.detach().requires_grad_(x.requires_grad) if isinstance(x, DTensor) else x


def check_placements(ranks: int, mesh: DeviceMesh) -> None:
    """What is divided by batch or heads stays so; a step is divided, too."""
    call = draw_call(ranks, 2 * ranks, ranks, {"is_causal": True})
    for dim in (0, 1):
        whole = [call[name].detach() for name in ("query", "key", "value")]
        q, k, v = (distribute(x, mesh, Shard(dim)) for x in whole)
        out, state = linear_attention(q, k, v, is_causal=True, return_state=True, enable_gqa=True)
        assert [x.placements for x in (out, *state)] == [(Shard(dim),)] * 3
        for _ in range(2):
            position = (x[:, :, 0] for x in (q, k, v))
            y, after = linear_attention_step(*position, state, enable_gqa=True)
            assert [x.placements for x in (y, *after)] == [(Shard(dim),)] * 3
        before = LinearAttentionState(*(x.full_tensor() for x in state))
        position = (x[:, :, 0] for x in whole)
        wanted, _ = linear_attention_step(*position, before, enable_gqa=True)
        assert_close(y.full_tensor(), wanted)


MODELS: list[dict[str, Any]] = [
    {"attention": Linear()},
    {
        "attention": Linear(decay="gated", window_size=3),
        "norm": "rms",
        "ffn": "swiglu",
        "rotary": True,
    },
    {"attention": Linear(feature_map="hedgehog", decay="learned"), "bias": False},
    {"attention": Linear(decay="fixed"), "tie_embeddings": True},
    {"attention": Softmax()},
]


def build(ranks: int, **fields: Any) -> AutoregressiveTransformer:
    torch.manual_seed(0)
    sizes = {"num_layers": 2, "num_heads": 2 * ranks, "num_kv_heads": ranks, "head_dim": 4}
    config = TransformerConfig(**{**sizes, "ffn_dim": 4 * ranks, **fields})
    positions = "rotary" if config.rotary else "learned"
    return AutoregressiveTransformer(config, 7, 20, positions).double()


def whole_gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    """The gradients by the names of a model that is not divided."""
    found = {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
    found = {n: x.full_tensor() if isinstance(x, DTensor) else x for n, x in found.items()}
    for name in [name for name in found if f"qkv.{PARTS[0]}." in name]:
        parts = [found.pop(name.replace(PARTS[0], part)) for part in PARTS]
        found[name.replace(f"{PARTS[0]}.", "")] = torch.cat(parts)
    return found


def check_models(ranks: int, mesh: DeviceMesh, folder: Path) -> None:
    """Losses, gradients, updates and generated tokens are those of one process, as is a file."""
    for number, fields in enumerate(MODELS):
        whole = build(ranks, **fields)
        part = parallelize_module(copy.deepcopy(whole), mesh, TensorParallel())
        optimizers = [
            torch.optim.Adam(x.parameters(), lr=0.01, foreach=False) for x in (whole, part)
        ]
        draw = torch.Generator().manual_seed(1)
        for _ in range(3):
            tokens = torch.randint(7, (3, 9), generator=draw)
            for model, optimizer in zip((whole, part), optimizers, strict=True):
                optimizer.zero_grad()
                model.loss(tokens, torch.tensor([9, 4, 1])).backward()
            ours = whole_gradients(part)
            for name, gradient in whole_gradients(whole).items():
                assert_close(ours[name], gradient, rtol=1e-9, atol=1e-11)
            for optimizer in optimizers:
                optimizer.step()
        settings: dict[str, Any] = {"prefix": [[1, 2], [3]], "length": 20, "seeds": 3}
        with torch.no_grad():
            assert torch.equal(part.generate(**settings), whole.generate(**settings))
        save(part, folder / str(number))
        loaded = load(folder / str(number)).state_dict()
        for name, x in whole.state_dict().items():
            assert_close(loaded[name], x, rtol=1e-7, atol=1e-8)


def check_layers(ranks: int, mesh: DeviceMesh) -> None:
    """Layers in modules of PyTorch, beside `fully_shard` on another dimension."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(4 * ranks, ranks, 8, 0.0, batch_first=True)
    whole = EncoderAttention.replace_in(layer).double()
    part = parallelize_module(copy.deepcopy(whole), mesh, TensorParallel())
    x = torch.randn(2, 5, 4 * ranks, dtype=torch.float64)
    padding = torch.arange(5) > torch.tensor([[4], [2]])
    results = [model(x, src_key_padding_mask=padding) for model in (whole, part)]
    assert_close(results[1], results[0])
    if ranks % 2 == 0:
        both = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("data", "tensor"))
        check_both(build(ranks), both)


def check_both(whole: AutoregressiveTransformer, mesh: DeviceMesh) -> None:
    """Weights divided on two dimensions: by heads, and by `fully_shard`."""
    part = parallelize_module(copy.deepcopy(whole), mesh["tensor"], TensorParallel())
    for block in part.transformer.blocks:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(part, mesh=mesh["data"])
    tokens = torch.randint(7, (4, 9), generator=torch.Generator().manual_seed(0))
    data = mesh["data"]
    whole.loss(tokens).backward()
    part.loss(tokens.chunk(data.size())[data.get_local_rank()]).backward()
    ours = whole_gradients(part)
    for name, gradient in whole_gradients(whole).items():
        assert_close(ours[name], gradient, rtol=1e-9, atol=1e-11)


def check_refusals(ranks: int, mesh: DeviceMesh) -> None:
    hedgehog = Linear(feature_map="hedgehog", feature_map_options={"num_heads": 2 * ranks})
    wrong: list[tuple[str, torch.nn.Module]] = [
        (r"^num_kv_heads of a LinearMixer: expected a multiple", build(ranks, num_kv_heads=1)),
        (r"^ffn_dim: expected a multiple", build(ranks, ffn_dim=4 * ranks + 1)),
        ("linear or softmax attention", build(ranks, attention=Lsh(), num_kv_heads=None)),
        ("that all heads share", build(ranks, attention=hedgehog, num_kv_heads=None)),
        ("a module with attention", torch.nn.Linear(2, 2)),
        ("num_kv_heads of a LinearAttention", LinearAttention(2 * ranks + 1, 2 * ranks + 1)),
    ]
    for wanted, model in wrong:
        with pytest.raises(ValueError, match=wanted):
            parallelize_module(model, mesh, TensorParallel())


def check_tensor_parallel(ranks: int, folder: Path) -> None:
    """All checks of this module."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tensor",))
    check_calls(ranks, mesh)
    check_placements(ranks, mesh)
    check_models(ranks, mesh, folder)
    check_layers(ranks, mesh)
    check_refusals(ranks, mesh)
