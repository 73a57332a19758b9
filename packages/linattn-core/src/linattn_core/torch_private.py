"""Uses of torch's private names, and workarounds for what torch does not offer.

Each has a test in tests/core/test_torch_private.py that says what breaks without it. No other
module of the package uses a private name of torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.autograd import forward_ad

R = TypeVar("R")


def register_namedtuple(kind: type[tuple[object, ...]], name: str) -> None:
    """Lets exported programs that take or return such a named tuple be saved and loaded.

    torch.export.save writes only named tuples with a registered name, and torch.load reads only
    types that are registered as safe.
    """
    pytree._register_namedtuple(kind, serialized_type_name=name)
    torch.serialization.add_safe_globals([kind])


def in_forward_mode() -> bool:
    """Whether a forward-mode derivative is being taken; cheap, because every call asks.

    The public `forward_ad.unpack_dual` answers for one tensor only, and torch.compile cannot trace
    it.
    """
    return forward_ad._current_level >= 0


def outside_every_mode(make: Callable[[], R]) -> R:
    """Calls `make` with all modes off, for a value that is used after the caller's mode has ended.

    Modes (inference, a default device, the fake tensors of torch.export, vmap) belong to a thread.
    torch has no public call that leaves them all, but a new thread starts without them.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


def is_unobserved(tensors: Iterable[Tensor | None], *, requires_grad: bool = False) -> bool:
    """Whether a kernel may be called with these tensors directly, without torch's dispatcher.

    False where something has to see the operator: a compiler, a tracer, a profiler, a transform of
    torch.func, autocast, a mode. False for tensors that are not plain memory of a CPU or CUDA
    device: subclasses, fake tensors, negated views. With `requires_grad`, also False inside a
    kernel that autograd has called.
    """
    if (
        torch.compiler.is_compiling()
        or torch._C._len_torch_function_stack()
        or torch._C._is_any_autocast_enabled()
        or torch._C._autograd._profiler_enabled()
        or not _is_plain_thread(torch._C._dispatch_tls_local_include_set().raw_repr())
        or (requires_grad and torch._C._dispatch_tls_is_dispatch_key_excluded(_AUTOGRAD))
    ):
        return False
    for x in tensors:  # not `all(...)`: a generator would take half a microsecond more
        if x is None or (type(x) in _KINDS and _is_plain(torch._C._dispatch_keys(x).raw_repr())):
            continue
        return False
    return True


def version_of(x: Tensor) -> int | None:
    """The number of writes into a tensor so far; None for one of inference mode, which counts none.

    Only a tensor's private attribute tells that it was written in place. It misses writes through
    `.data` and into memory that is shared with NumPy.
    """
    return None if x.is_inference() else x._version


def is_transformed() -> bool:
    """Whether a transform of torch.func is active; False while a compiler traces."""
    return (
        not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is not None
    )


def is_mapped(tensors: Iterable[Tensor | None]) -> bool:
    """Whether `torch.func.vmap` maps over one of the tensors; False while a compiler traces."""
    if torch.compiler.is_compiling():
        return False
    return any(x is not None and torch._C._functorch.is_batchedtensor(x) for x in tensors)


_KINDS = (Tensor, torch.nn.Parameter)
_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality
_THREAD = frozenset({"BackendSelect", "ADInplaceOrView"})
_PLAIN = frozenset(
    {"CPU", "CUDA", "ADInplaceOrView", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA"}
)


@functools.cache
def _is_plain(keys: int) -> bool:
    """Whether a tensor's dispatch keys are those of plain memory of a CPU or GPU."""
    return _names(keys) <= _PLAIN


@functools.cache
def _is_plain_thread(keys: int) -> bool:
    """Whether the keys that a thread adds to every call show no mode other than inference."""
    return _names(keys) <= _THREAD


def _names(keys: int) -> frozenset[str]:
    shown = str(torch._C.DispatchKeySet.from_raw_repr(keys))  # DispatchKeySet(CPU, AutogradCPU)
    return frozenset(shown.partition("(")[2].rstrip(")").split(", "))
