"""The kernels of a fused step, from the code that torch's compiler writes for a GPU, without one.

The tensors are fake ones on a fake H100, and the code is neither compiled nor run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import config, scheduler
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _triton

from linattn_core.decoder_spec import DecoderDescription
from linattn_models import Head
from linattn_models.decoding import torch_step
from linattn_models.decoding.graph import EagerRecorder, _Slot, fuse

_H100 = SimpleNamespace(
    name="H100", gcnArchName="", major=9, minor=0, multi_processor_count=132, warp_size=32,
    max_threads_per_block=1024, regs_per_multiprocessor=65_536,
    max_threads_per_multi_processor=2_048,
)  # fmt: skip
_LAUNCH = re.compile(r"^ +(?:\w+ = )?(?:\w+\.run|extern_kernels\.\w+|torch\.ops\.[\w.]+)\(", re.M)


class _Written(Exception):
    """The code of a step is written."""


def count_kernels(description: DecoderDescription, head: Head, weights: str, batch: int) -> int:
    """The kernels of a fused step with its draw; the operator counts as one.

    Args:
        description: of a model on the meta device.
    """
    codes: list[str] = []

    def write(graph: Any) -> None:
        codes.append(graph.codegen()[0].value)
        raise _Written

    with _fake_gpu(), patch.object(GraphLowering, "compile_to_module", write), torch.no_grad():
        slot = _Slot(_on_gpu(description, weights), head.invert, EagerRecorder(), batch)
        try:
            fuse(lambda: slot._work("drawn"))()
        except torch._inductor.exc.InductorError as error:
            if not isinstance(error.__cause__ or error.inner_exception, _Written):
                raise
    return len(_LAUNCH.findall(codes[0]))


def _on_gpu(description: DecoderDescription, weights: str) -> torch_step.TorchStep:
    """The step of a model on the meta device, with fake tensors on the GPU in place of its own."""
    copy, gpu = torch_step._copy, torch.device("cuda", 0)

    def fake(part: Any, dtype: torch.dtype) -> Any:
        if not isinstance(part, Tensor):
            return copy(part, dtype)
        return torch.empty_strided(part.shape, part.stride(), dtype=dtype, device=gpu)

    with patch.object(torch_step, "_copy", fake):
        step = torch_step.TorchStep(description, weights, "reference")
    step.device = gpu
    if step._frequencies is not None:
        step._frequencies = fake(step._frequencies, torch.float64)
    return step


@contextmanager
def _fake_gpu() -> Iterator[None]:
    """What the compiler asks of a GPU, and what a torch without CUDA refuses to fake tensors."""

    def answer(value: Any) -> Any:
        return staticmethod(lambda *args, **kwargs: value)

    def copy_(x: Tensor, y: Tensor, non_blocking: bool = False) -> Tensor:
        return torch.ops.aten.copy_.default(x, y, non_blocking)

    with ExitStack() as stack:
        for place, name, new in (
            (CudaInterface, "is_available", answer(True)),
            (CudaInterface, "is_bf16_supported", answer(True)),
            (CudaInterface, "get_device_properties", answer(_H100)),
            (CudaInterface.Worker, "get_device_properties", answer(_H100)),
            (torch.cuda, "get_device_properties", answer(_H100)),
            (torch.cuda, "get_device_capability", answer((9, 0))),
            (torch.cuda, "current_device", answer(0)),
            (torch.cuda, "device_count", answer(1)),
            (scheduler, "has_triton", answer(True)),
            (_triton, "triton_hash_with_backend", answer("")),
            (config, "joint_graph_constant_folding", False),  # it would compute on the GPU
            (Tensor, "__getitem__", _get_item),
            (Tensor, "copy_", copy_),
        ):
            stack.enter_context(patch.object(place, name, new))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def _get_item(x: Tensor, index: Any) -> Tensor:
    """x[index] by operators."""
    indices = index if isinstance(index, tuple) else (index,)
    dim = 0
    for place, each in enumerate(indices):
        if each is Ellipsis:
            dim = x.ndim - sum(other is not None for other in indices[place + 1 :])
            continue
        if isinstance(each, int):
            x = x.select(dim, each)
            continue
        if each is None:
            x = x.unsqueeze(dim)
        elif isinstance(each, Tensor):
            x = torch.ops.aten.index(x, [None] * dim + [each])
        else:
            x = torch.ops.aten.slice(x, dim, each.start, each.stop)
        dim += 1
    return x
