"""The CUDA module that was built, and what stands in it; needs no GPU."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import linattn_cuda._native as native
from linattn_cuda.device import Code


@functools.cache
def cuda_module() -> ModuleType:
    """The installed module; skips the test where it was built without kernels."""
    if not native.built_with:
        pytest.skip("linattn-cuda was built without nvcc")
    return native


def architectures() -> list[str]:
    """Those that the module has machine code for: ["75", "80", ...]."""
    return Code.read(cuda_module().built_with).machine


def dump(*options: str) -> Iterator[str]:
    """What cuobjdump prints of the module, line by line."""
    command = [_cuobjdump(), *options, str(cuda_module().__file__)]
    environment = {**os.environ, "PATH": os.pathsep.join((*_folders(), os.environ["PATH"]))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stdout is not None
        yield from running.stdout
    assert running.returncode == 0, command


def _folders() -> list[str]:
    """Where pip's packages of CUDA's tools put them."""
    return [str(x) for x in Path(sysconfig.get_path("purelib"), "nvidia").glob("*/bin")]


def _cuobjdump() -> str:
    found = shutil.which("cuobjdump", path=os.pathsep.join((*_folders(), os.environ["PATH"])))
    return found or pytest.skip("cuobjdump is needed (nvidia-cuda-cuobjdump, -nvdisasm)")
