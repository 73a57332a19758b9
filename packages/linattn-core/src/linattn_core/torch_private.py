"""Uses of torch's private names, and workarounds for what torch does not offer.

Each has a test in tests/core/test_torch_private.py that says what breaks without it. No other
module of the package uses a private name of torch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

if torch.distributed.is_available():
    import torch._C._distributed_c10d as _c10d
    from torch.distributed import ProcessGroup
    from torch.distributed.distributed_c10d import GroupName

R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., object])


def register_namedtuple(kind: type[tuple[object, ...]], name: str) -> None:
    """Lets exported programs that take or return such a named tuple be saved and loaded.

    torch.export.save writes only named tuples with a registered name, and torch.load reads only
    types that are registered as safe.
    """
    pytree._register_namedtuple(kind, serialized_type_name=name)
    torch.serialization.add_safe_globals([kind])


def register_dataclass(kind: type, name: str, without: Sequence[str] = ()) -> None:
    """Makes a dataclass a pytree that exported programs take, without the fields `without`.

    torch.export.register_dataclass makes every field a leaf.
    """
    names = [field.name for field in dataclasses.fields(kind) if field.name not in without]
    pytree.register_dataclass(
        kind, field_names=names, drop_field_names=[*without], serialized_type_name=name
    )
    torch.serialization.add_safe_globals([kind])


def constant_in_graphs(function: Function) -> Function:
    """Tells a compiler to call `function` while it traces, and to go on with what it returns.

    torch.compiler.assume_constant_result does just this, but imports the compiler for it: that
    takes longer than the import of torch.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def register_sharding(
    operator: Any, rule: Callable[..., Sequence[tuple[list[Any], list[Any]]]]
) -> None:
    """Registers an operator's rule with DTensor; see torch's `register_sharding`.

    DTensor keeps answers for calls that are alike in their tensors and, by torch's function, their
    integers; here all arguments count, also flags, names and which tensors there are.
    """
    from torch.distributed.tensor import DTensor, experimental

    experimental.register_sharding(operator)(rule)
    propagator = DTensor._op_dispatcher.sharding_propagator
    propagator.op_to_schema_info[operator].static_argnum = 0


def outside_every_mode(make: Callable[[], R]) -> R:
    """Calls `make` with all modes off, for a value that is used after the caller's mode has ended.

    Modes (inference, a default device, the fake tensors of torch.export, vmap) belong to a thread.
    torch has no public call that leaves them all, but a new thread starts without them.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


Observer = Literal["nobody", "dispatcher", "onnx", "func", "vmap", "forward mode"]


def find_observer(tensors: Sequence[Tensor | None], *, requires_grad: bool = False) -> Observer:
    """Who has to see the operator of a call with these tensors; every call asks here, once.

    - "nobody": the kernel may be called directly;
    - "forward mode": a tensor carries a tangent, which the operators would drop silently;
    - "onnx": `torch.onnx.export` traces the call;
    - "vmap": `torch.func.vmap` maps over a tensor; "func": another transform of torch.func;
    - "dispatcher": a compiler, a tracer, a profiler or a mode; or a tensor is not plain
      memory of a CPU or CUDA device (subclasses, fake tensors, negated views). With
      `requires_grad`, also a kernel that autograd has called.
    """
    if forward_ad._current_level >= 0 and any(map(_has_tangent, tensors)):
        return "forward mode"
    if torch.compiler.is_compiling():
        return "onnx" if _is_exporting() else "dispatcher"
    if not (
        torch._C._len_torch_function_stack()
        or torch._C._autograd._profiler_enabled()
        or not _is_plain_thread(torch._C._dispatch_tls_local_include_set().raw_repr())
        or (requires_grad and torch._C._dispatch_tls_is_dispatch_key_excluded(_AUTOGRAD))
    ):
        for x in tensors:  # not `all(...)`: a generator would take half a microsecond more
            if x is not None and not (
                type(x) in _KINDS and _is_plain(torch._C._dispatch_keys(x).raw_repr())
            ):
                break
        else:
            return "nobody"
    if _is_exporting():
        return "onnx"
    if any(x is not None and torch._C._functorch.is_batchedtensor(x) for x in tensors):
        return "vmap"
    return "func" if torch._C._functorch.peek_interpreter_stack() is not None else "dispatcher"


def _has_tangent(x: Tensor | None) -> bool:
    return x is not None and forward_ad.unpack_dual(x).tangent is not None


# Dynamo would assume that torch's answer is always False.
@constant_in_graphs
def _is_exporting() -> bool:
    return torch.onnx.is_in_onnx_export()


def is_tracing() -> bool:
    """Whether torch.jit.trace records the call.

    Its check repeats the call under no_grad and compares the graphs, so the operator with gradients
    must be recorded both times.
    """
    return torch._C._get_tracing_state() is not None


def is_fake_or_mapped(x: Tensor) -> bool:
    """Whether it has no numbers: a fake tensor, or one that vmap maps, within other transforms."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return True
        x = functorch.get_unwrapped(x)
    return isinstance(x, FakeTensor)


def version_of(x: Tensor) -> int | None:
    """The number of writes into a tensor so far; None for one of inference mode, which counts none.

    Only a tensor's private attribute tells that it was written in place. It misses writes through
    `.data` and into memory that is shared with NumPy.
    """
    return None if x.is_inference() else x._version


def find_group(name: str) -> ProcessGroup:
    """The process group of this name.

    What autograd keeps must not hold the group itself, whose end would then come after that of the
    interpreter and abort the process.
    """
    group: ProcessGroup = _c10d._resolve_process_group(GroupName(name))
    return group


def has_cpu_backend(group: ProcessGroup) -> bool:
    """Whether a group exchanges CPU tensors, too."""
    return any(x.type == "cpu" for x in group._device_types)


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
