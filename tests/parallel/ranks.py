"""Runs a function on several ranks: real processes, which exchange by gloo."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from linattn_lab.script import end_process_group

# Imported once, by the process that all ranks are forked from: an import of torch takes seconds.
SHARED = ["linattn_lab.script", "linattn_models.parallel", "linattn_models.training"]


def start_ranks(ranks: int, work: Callable[..., None], *arguments: Any) -> mp.ProcessContext:
    """Starts work(rank, *arguments) on each rank."""
    multiprocessing.set_forkserver_preload(SHARED)
    return mp.start_processes(work, arguments, nprocs=ranks, join=False, start_method="forkserver")


def on_ranks(ranks: int, work: Callable[..., None], *arguments: Any) -> None:
    """Calls work(rank, *arguments) on each rank; fails with what failed there."""
    folder_of_tests = str(Path(__file__).parents[1])
    if folder_of_tests not in sys.path:  # the processes import this package from there
        sys.path.append(folder_of_tests)
    with tempfile.TemporaryDirectory() as folder:
        context = start_ranks(ranks, _run, ranks, folder, work, arguments)
        while not context.join():
            pass


def become_rank(rank: int, ranks: int) -> None:
    """Sets what torchrun sets for a rank, and hides the GPUs of the machine."""
    torch.set_num_threads(1)
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in places.items()})
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _run(rank: int, ranks: int, folder: str, work: Callable[..., None], arguments: Any) -> None:
    become_rank(rank, ranks)
    # Long enough for a busy machine: a real deadlock ends by it, with an error.
    dist.init_process_group(
        "gloo",
        init_method=(Path(folder) / "store").as_uri(),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=120),
    )
    try:
        work(rank, *arguments)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        end_process_group()
