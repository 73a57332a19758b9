"""Ranks compare their calls, so that what is wrong on one of them is the same error on all."""

from __future__ import annotations

import hashlib
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from linattn_core.calls import AttentionCall
from linattn_core.errors import expected
from linattn_core.torch_private import has_cpu_backend

_KINDS = (OSError, TypeError, ValueError, RuntimeError)
_compared: set[str] = set()  # names of the groups that have compared a call


def describe(call: AttentionCall, backend: str) -> dict[str, Any]:
    """What must be the same on every rank: all but the tensors' numbers and the lengths."""
    states = call.initial_state is not None
    return {
        "batch size": call.batch,
        "heads": (call.heads, call.kv_heads),
        "dims": (call.feature_dim, call.value_dim),
        "dtypes": (call.query_dtype, call.value_dtype),
        "is_causal": call.is_causal,
        "feature_map": call.feature_map,
        "key_lengths": _numbers(call.key_lengths),
        "initial_state": "given" if states else None,
        "return_state": call.return_state,
        "log_decay": None if call.log_decay is None else "given",
        "normalize": call.normalize,
        "return_normalizer": call.return_normalizer,
        "eps": call.eps,
        "requires_grad": call.requires_grad,
        "backend": backend,
    }


def _numbers(x: Tensor | None) -> Any:
    return x.tolist() if x is not None and x.is_cpu else x is not None


def compare(
    group: dist.ProcessGroup, length: int, settings: dict[str, Any], device: torch.device
) -> list[int]:
    """The length of every rank's part; raises the same error on all ranks if settings differ.

    Where a group has no CPU backend, the answer waits for the GPU. So it compares its first call
    only, and those that need the lengths; the lengths of other calls are 0.
    """
    place = _place(group, device)
    needs_lengths = settings["key_lengths"] is not None
    if place.type != "cpu" and group.group_name in _compared and not needs_lengths:
        return [0] * group.size()
    digest = hashlib.sha256(repr(settings).encode()).digest()
    own = [length, int.from_bytes(digest[:7], "big"), 0]
    everyone = _gather(group, own, place)
    if any(row[2] for row in everyone) or len({row[1] for row in everyone}) > 1:
        require_same(group, settings)
    return [row[0] for row in everyone]


def fail(group: dist.ProcessGroup, error: Exception, device: torch.device) -> NoReturn:
    """Raises this rank's error on all ranks, which `compare` at the same time."""
    place = _place(group, device)
    if place.type == "cpu" or group.group_name not in _compared:
        _gather(group, [0, 0, 1], place)
        require_same(group, {}, error)
    raise error


def require_same(
    group: dist.ProcessGroup, settings: dict[str, Any], error: Exception | None = None
) -> None:
    """Raises the same error on all ranks if one passes an error, or if their settings differ."""
    failure = None if error is None else describe_error(error)
    told: list[Any] = [None] * group.size()
    dist.all_gather_object(told, (settings, failure), group)
    first, first_failure = told[0]
    is_common = all(refusal == first_failure for _, refusal in told)
    for rank, (_, refusal) in enumerate(told):
        if refusal is not None:
            kind, text = refusal
            raise kind(text if is_common else f"On rank {rank}: {text}")
    for rank, (other, _) in enumerate(told):
        for name in first | other:
            ours, theirs = (x.get(name) for x in (first, other))
            if repr(ours) != repr(theirs):
                got = f"{ours} on rank 0 and {theirs} on rank {rank}"
                raise ValueError(expected(f"{name} of ranks", "the same on every rank", got))


def describe_error(error: Exception) -> tuple[type[Exception], str]:
    """A kind and a text that every rank can raise."""
    for kind in _KINDS:
        if isinstance(error, kind):
            return kind, str(error)
    return RuntimeError, repr(error)


def _place(group: dist.ProcessGroup, device: torch.device) -> torch.device:
    """Where small numbers are exchanged: on the CPU where the group can, so that no GPU waits."""
    return torch.device("cpu") if has_cpu_backend(group) else device


def _gather(group: dist.ProcessGroup, own: list[int], place: torch.device) -> list[list[int]]:
    _compared.add(group.group_name)
    row = torch.tensor(own, dtype=torch.int64, device=place)
    rows = [torch.empty_like(row) for _ in range(group.size())]
    dist.all_gather(rows, row, group=group)
    return [x.tolist() for x in rows]
