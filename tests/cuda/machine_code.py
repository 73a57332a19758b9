"""Machine code, of the CUDA module that was built and of files; needs no GPU."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import linattn_cuda._native as native
from linattn_cuda.device import Code


@functools.cache
def cuda_module() -> ModuleType:
    """The installed module; skips the test where nvcc compiled no kernels into it."""
    if not native.built_with.startswith("nvcc"):
        pytest.skip("linattn-cuda was built without nvcc")
    return native


class Kernel(NamedTuple):
    """What a compiler made of a kernel.

    Attributes:
        products: instructions on tensor cores.
        registers: of a thread.
        spilled: bytes of a thread on its stack and in local memory.
    """

    products: int
    registers: int
    spilled: int


# Products of which a multiprocessor runs one block at a time: float16 and float32 beyond 128 dims.
ALONE = re.compile(r"ProductShapeILi[23]ELi256E")
# Forward products of 64 dims: shared memory holds so few blocks that each may have more registers.
LEAN = re.compile(r"LeanShape")
# Most bytes that a thread may spill.
MOST_SPILLED = 72
_FUNCTION = re.compile(r"Function\s*:?\s*(\w+)")
_USED = re.compile(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)")


def kernels_of(file: Path | str, *options: str) -> dict[str, Kernel]:
    """Those of a file of machine code of one architecture, by their names in it."""
    products: Counter[str] = Counter()
    for name, line in lines_of("-sass", *options, file=file):
        products[name] += "HMMA" in line
    found = {}
    for name, line in lines_of("-res-usage", *options, file=file):
        if used := _USED.search(line):
            registers, stack, local = map(int, used.groups())
            found[name] = Kernel(products[name], registers, stack + local)
    return found


def lines_of(*options: str, file: Path | str | None = None) -> Iterator[tuple[str, str]]:
    """The lines that cuobjdump prints of each kernel, with the kernel's name."""
    name = ""
    for line in dump(*options, file=file):
        if named := _FUNCTION.search(line):
            name = named[1]
        if name:
            yield name, line


_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+([^;]+;)")


def instructions_of(file: Path | str, *options: str) -> dict[str, list[str]]:
    """The instructions of each kernel in the order of its code, by the kernels' names."""
    instructions: dict[str, list[str]] = {}
    for name, line in lines_of("-sass", *options, file=file):
        if instruction := _INSTRUCTION.search(line):
            instructions.setdefault(name, []).append(instruction[1])
    return instructions


def code() -> Code:
    """What the module says that it was compiled to."""
    return Code.read(cuda_module().built_with)


def architectures() -> list[str]:
    """Those that the module has machine code for: ["75", "80", ...]."""
    return code().machine


def dump(*options: str, file: Path | str | None = None) -> Iterator[str]:
    """What cuobjdump prints of a file, or of the module, line by line."""
    command = [_cuobjdump(), *options, str(file or cuda_module().__file__)]
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
