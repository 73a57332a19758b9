"""What kernels depend on: triton, and the GPU of a call."""

from __future__ import annotations

import functools
import importlib
import os
import re
from contextlib import AbstractContextManager, nullcontext

import torch

from linattn_core.errors import quote

OLDEST_TRITON = (3, 6)
# The first with bfloat16 products.
OLDEST_CAPABILITY = (8, 0)
GPUS = ("cuda", "xpu")  # torch calls AMD's cuda, too


@functools.cache
def missing() -> str | None:
    """Why there is no triton that the kernels run by, as a sentence; None if there is one."""
    try:
        importlib.import_module("triton.language")
    except ImportError as error:
        return (
            f"triton cannot be imported ({error}); install a torch that is built for a GPU, which "
            "brings it along."
        )
    found = installed_version()
    if found and tuple(map(int, re.findall(r"\d+", found)[:2])) < OLDEST_TRITON:
        oldest = ".".join(map(str, OLDEST_TRITON))
        return f"its kernels need triton {oldest} or later and {found} is installed; update torch."
    return None


def installed_version() -> str:
    """The version of triton as it says itself; empty if it does not."""
    triton = importlib.import_module("triton")
    return str(getattr(triton, "__version__", ""))


def interprets() -> bool:
    """Whether kernels run by Triton's interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def unusable() -> str | None:
    """Why nothing can run in this process, as a sentence; None if a GPU is at hand."""
    reason = missing()
    if reason is not None or interprets():
        return reason
    if torch.cuda.is_available() or torch.xpu.is_available():
        return _cannot_start()
    return (
        "torch finds no GPU, or no driver for it; see whether `nvidia-smi`, `rocm-smi` or "
        "`xpu-smi` lists one."
    )


def _cannot_start() -> str | None:
    """Why triton does not start, as a sentence: the first time, it compiles its launcher in C."""
    try:
        _ = importlib.import_module("triton.runtime").driver.active
    except Exception as error:  # noqa: BLE001 - of the compiler, the loader or the driver
        return (
            f"triton does not start here: {quote(error)}; it needs the GPU's driver, a C compiler "
            "(gcc or clang in PATH, or CC), and the headers of Python."
        )
    return None


def refuses(device: torch.device) -> str | None:
    """Why kernels cannot run on tensors there, as a sentence; None if they can."""
    if interprets():
        accepted, wanted = device.type == "cpu", "tensors on the CPU, as TRITON_INTERPRET is 1"
    else:
        accepted, wanted = device.type in GPUS, "tensors on a GPU"
    if not accepted:
        return f"it runs on {wanted}, and these are on {device}; move them there."
    return unusable() or (None if device.type != "cuda" else too_old(device.index))


@functools.cache
def too_old(index: int | None) -> str | None:
    """Why an NVIDIA GPU cannot run the kernels, as a sentence; None if it can, or is AMD's."""
    if torch.version.hip is not None:
        return None
    capability = torch.cuda.get_device_capability(index)
    if capability >= OLDEST_CAPABILITY:
        return None
    return (
        "its kernels need compute capability {}.{} and {} has {}.{}; install linattn-cuda, or pass "
        'backend="reference".'
    ).format(*OLDEST_CAPABILITY, torch.cuda.get_device_name(index), *capability)


@functools.cache
def capability(device: torch.device) -> int:
    """The compute capability of an NVIDIA GPU, as 90 for 9.0; 0 of all else."""
    if device.type != "cuda" or torch.version.hip is not None:
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@functools.cache
def programs_at_once(device: torch.device) -> int:
    """How many programs fill a GPU: four for each of its multiprocessors."""
    if device.type != "cuda":
        return 512
    return 4 * torch.cuda.get_device_properties(device).multi_processor_count


def current(device: torch.device) -> AbstractContextManager[object]:
    """Makes a GPU the current one, whose current stream Triton launches kernels on."""
    if device.type == "cpu":
        return nullcontext()
    entered: AbstractContextManager[object] = (
        torch.cuda.device(device) if device.type == "cuda" else torch.xpu.device(device)
    )
    return entered


def tf32_allowed() -> bool:
    """Whether torch may round float32 products to TF32, by any of its switches."""
    # The older switches' own getters raise once somebody has used this one.
    return str(torch.backends.cuda.matmul.fp32_precision) == "tf32"


def precision(device: torch.device, dtype: torch.dtype, *, cancels: bool = False) -> str:
    """How products of operands of a dtype are computed; see `input_precision` of `tl.dot`.

    float16 numbers are exact in TF32, whose range is that of float32: sums and scores do not
    overflow. Float32 numbers are cut into three parts of bfloat16, which hold all of their bits.
    Two parts of TF32 (tf32x3) take as long and lose the last two bits of every product.

    Args:
        cancels: whether the operands are float32 numbers whose products nearly cancel. For float16
            tensors they are then cut into two parts of bfloat16, which keep 16 bits; TF32 keeps 11.
    """
    amd = torch.version.hip is not None
    in_two_parts = cancels and dtype == torch.float16
    if device.type == "cpu":
        names = {torch.bfloat16: "rounded", torch.float16: "ieee" if in_two_parts else "tf32"}
        return names.get(dtype, "ieee")
    if dtype == torch.float16 or (dtype == torch.float32 and tf32_allowed()):
        return "bf16x3" if amd or in_two_parts else "tf32"
    if dtype == torch.bfloat16:
        return "ieee"
    return "bf16x6"
