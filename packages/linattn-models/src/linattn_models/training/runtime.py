"""The processes and device of a run, deterministic kernels, and the record of its environment."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.utils.deterministic as determinism
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from linattn_core import backends
from linattn_core.errors import expected
from linattn_models.training.config import TrainingConfig
from linattn_models.training.processes import run_on_cpu, start_processes


def make_accelerator(config: TrainingConfig) -> Accelerator:
    """The accelerator of a run: device, precision and the processes that torchrun started.

    Raises:
        ValueError: if the processes cannot share sequences or a batch evenly, or the device lacks
            the precision.
    """
    # A process may train twice with different precisions; accelerate's state would keep the first.
    AcceleratorState._reset_state()
    start_processes()
    accelerator = Accelerator(cpu=run_on_cpu(), mixed_precision=config.mixed_precision)
    kind, processes = accelerator.distributed_type.value, accelerator.num_processes
    if kind != "NO" and not kind.startswith("MULTI_"):
        wanted = "one process, or several that are data-parallel under torchrun"
        raise ValueError(expected("training", wanted, f"accelerate set up for {kind}"))
    if config.mixed_precision == "fp16" and accelerator.device.type == "cpu":
        wanted = "'bf16' or 'no' without an accelerator"
        raise ValueError(expected("mixed_precision", wanted, "'fp16'"))
    if processes % config.context_parallel:
        wanted = f"a divisor of the {processes} process(es)"
        raise ValueError(expected("context_parallel", wanted, config.context_parallel))
    sharing = processes // config.context_parallel
    if config.batch_size % (sharing * config.gradient_accumulation_steps):
        wanted = f"a multiple of the {sharing} processes that share a batch"
        if config.gradient_accumulation_steps > 1:
            wanted += f", times gradient_accumulation_steps {config.gradient_accumulation_steps}"
        raise ValueError(expected("batch_size", wanted, config.batch_size))
    return accelerator


@contextmanager
def deterministic_kernels(device: torch.device) -> Iterator[None]:
    """On CUDA, deterministic kernels while the body runs; an operator without one warns.

    Without it, the backward pass of softmax attention adds in a different order each time, and a
    resumed run would differ from an unbroken one. The CPU kernels that training uses are always
    deterministic.
    """
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch's condition for cuBLAS
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = determinism.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=warned if before else True)
    determinism.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        determinism.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


def environment(device: torch.device) -> dict[str, object]:
    """The day, versions, device, threads and source commit of this process, null where unknown."""
    return {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
        "device": _device_name(device),
        "threads": torch.get_num_threads(),
        "backends": list(backends()),
        # The commit of the script's checkout; without one, that of an editable installation.
        "commit": source_commit(Path(sys.argv[0]).resolve().parent)
        or source_commit(Path(__file__).parent),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def source_commit(folder: Path) -> str | None:
    """The commit of the git checkout around `folder`; None without git, checkout or commit."""
    # A container often runs as another user than the one who owns the checkout.
    mine = ("-c", "safe.directory=*")
    command = ["git", *mine, "-C", str(folder), "rev-parse", "--verify", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def _device_name(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    return f"cuda ({torch.cuda.get_device_name(device)})"
