"""Work that two ranks share, beside one process: the processor time of a rank.

The ranks share the cores of one machine, so that a clock would show how busy it is.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import linattn_core
from benchmarks import oracle
from benchmarks.case import Case, Make, Method, Settings
from benchmarks.cases.models import MODEL, Task
from linattn_core.distributed import context_parallel_attention
from linattn_lab.script import end_process_group
from linattn_models import AutoregressiveTransformer, LinearAttention
from linattn_models.parallel import ContextParallel, sum_gradients

ONE, TWO = "one process", "two ranks"
HEADS, HEAD_DIM, LENGTH, LAYER_LENGTH, BATCH = 8, 32, 65_536, 8_192, 4
QUICK_LENGTH = 96
CALLS = 4

Work = Callable[[DeviceMesh | None, bool, torch.dtype], Callable[[], Tensor]]
"""(mesh, quick, dtype) -> a call that does a rank's part, and returns its part of a result."""


def find_own(mesh: DeviceMesh | None, length: int) -> slice:
    """The positions of this rank."""
    rank, ranks = (0, 1) if mesh is None else (mesh.get_local_rank(), mesh.size())
    return slice(length * rank // ranks, length * (rank + 1) // ranks)


def attend(mesh: DeviceMesh | None, quick: bool, dtype: torch.dtype) -> Callable[[], Tensor]:
    """The causal operator and its gradients; returns those of the own values."""
    length = QUICK_LENGTH if quick else LENGTH
    own = find_own(mesh, length)
    generator = torch.Generator().manual_seed(0)
    shape = (1, HEADS, length, HEAD_DIM)
    drawn = [torch.randn(shape, generator=generator)[:, :, own].to(dtype) for _ in range(4)]
    *inputs, upstream = (x.contiguous() for x in drawn)
    for x in inputs:
        x.requires_grad_()

    def call() -> Tensor:
        out: Any
        if mesh is None:
            out = linattn_core.linear_attention(*inputs, is_causal=True)
        else:
            out = context_parallel_attention(*inputs, mesh=mesh, is_causal=True)
        return torch.autograd.grad(out, inputs, upstream)[2]

    return call


def attend_layer(mesh: DeviceMesh | None, quick: bool, dtype: torch.dtype) -> Callable[[], Tensor]:
    """A layer of width 256 and the gradients of its weights; returns its own outputs."""
    length, width = QUICK_LENGTH if quick else LAYER_LENGTH, HEADS * HEAD_DIM
    torch.manual_seed(0)
    layer = LinearAttention(width, HEADS).to(dtype)
    own = find_own(mesh, length)
    x, upstream = (torch.randn(1, length, width).to(dtype)[:, own] for _ in range(2))
    if mesh is not None:
        parallelize_module(layer, mesh, ContextParallel())

    def call() -> Tensor:
        layer.zero_grad()
        out = layer(x, is_causal=True)
        out.backward(upstream)
        if mesh is not None:
            sum_gradients(layer, mesh)
        return torch.transpose(out.detach(), 1, 2)

    return call


class Loss(nn.Module):
    """A model's loss as a module, because DistributedDataParallel sees `forward` alone."""

    def __init__(self, model: AutoregressiveTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model.loss(tokens)


def train_images(mesh: DeviceMesh | None, quick: bool, dtype: torch.dtype) -> Callable[[], Tensor]:
    """The gradients of the paper's MNIST model, of which every rank has the mean."""
    task = Task(BATCH).for_settings(Settings(quick=quick))
    model = task.model(dtype=dtype).train().requires_grad_()
    shape = (BATCH, task.length)
    tokens = torch.randint(256, shape, generator=torch.Generator().manual_seed(2))
    loss: nn.Module = Loss(model)
    if mesh is not None:
        loss = DistributedDataParallel(loss)
        tokens = tokens.chunk(mesh.size())[mesh.get_local_rank()]

    def call() -> Tensor:
        model.zero_grad()
        loss(tokens).backward()
        gradient = model.get_parameter("output.weight").grad
        assert gradient is not None, "it has just been computed"
        return gradient.clone()

    return call


def run_ranks(work: Work, ranks: int, quick: bool) -> tuple[float, list[Tensor]]:
    """The least processor seconds of the busiest rank, and what each rank returns."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_run, (ranks, folder, work, quick), nprocs=ranks)
        told = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(ranks)]
    return max(seconds for seconds, _ in told), [result for _, result in told]


def _run(rank: int, ranks: int, folder: str, work: Work, quick: bool) -> None:
    torch.set_num_threads(1)
    store = (Path(folder) / "store").as_uri()
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    try:
        mesh = init_device_mesh("cpu", (ranks,)) if ranks > 1 else None
        torch.save(_time_calls(work, mesh, quick), Path(folder) / f"{rank}.pt")
    finally:
        end_process_group()


def _time_calls(work: Work, mesh: DeviceMesh | None, quick: bool) -> tuple[float, Tensor]:
    """The least processor seconds of a call, and what the first returns; the model ends with it."""
    call = work(mesh, quick, torch.float32)
    result, seconds = call(), []
    for _ in range(1 if quick else CALLS):
        started = time.process_time()
        call()
        seconds.append(time.process_time() - started)
    return min(seconds), result


def share_work(work: Work, ranks: int, merges: bool, settings: Settings) -> Method:
    """The work on so many ranks; with `merges` their results are parts of one along the length."""

    def find_fault() -> str | None:
        _, results = run_ranks(work, ranks, settings.quick)
        actual = torch.cat(results, 2) if merges else results[0]
        with linattn_core.use_backend("reference"):
            exact = work(None, settings.quick, torch.float64)()
        return oracle.find_disagreement("the result", actual, exact)

    return Method(find_fault, measure=lambda: run_ranks(work, ranks, settings.quick)[0])


def parallel_case(name: str, shows: str, work: Work, *, merges: bool) -> Case:
    """The work by one process and by two ranks."""

    def setup(settings: Settings) -> dict[str, Make]:
        return {
            title: partial(share_work, work, ranks, merges, settings)
            for title, ranks in ((ONE, 1), (TWO, 2))
        }

    shows += " Processor time of a rank with one thread; ranks exchange by gloo on one machine."
    return Case(f"parallel/{name}", shows, setup, ratios=((ONE, TWO),), seconds=60, rounds=(3, 5))


CASES = (
    parallel_case(
        "operator",
        f"The causal operator and its gradients in float32: {LENGTH:,} positions, {HEADS} heads of "
        f"{HEAD_DIM}, of which each rank has a part.",
        attend,
        merges=True,
    ),
    parallel_case(
        "layer",
        f"A causal layer of width {HEADS * HEAD_DIM} and its gradients in float32: "
        f"{LAYER_LENGTH:,} positions, of which each rank has a part.",
        attend_layer,
        merges=True,
    ),
    parallel_case(
        "training",
        f"The gradients of the paper's MNIST model in float32, {BATCH} images shared by "
        f"DistributedDataParallel: {MODEL}.",
        train_images,
        merges=False,
    ),
)
