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
# Of the lean products, shared memory holds so few blocks that registers are not scarce.
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


# "BRA 0x3c0 ;", and what is done however a warp goes around a loop: products, copies, results.
_BRANCH = re.compile(r"\bBRA\b.*?(0x[0-9a-f]+)")
_WORK = re.compile(r"\b(HMMA|LDGSTS|STG\.E\.128)\b")
_BYTES = 16  # of an instruction


def turn_of_loop(instructions: list[str]) -> int:
    """How many instructions a warp issues that goes once around the loop with the most products.

    Where paths part, it takes the one with more work, and of equal ones the shorter: that of rows
    that see all keys of a whole chunk.
    """
    places = {
        i: int(branch[1], 16) // _BYTES
        for i, line in enumerate(instructions)
        if (branch := _BRANCH.search(line))
    }
    products = [i for i, line in enumerate(instructions) if "HMMA." in line]
    loops = [(to, i) for i, to in places.items() if to < i]
    first, last = max(loops, key=lambda loop: sum(loop[0] < i < loop[1] for i in products))
    best = {first: (0, 0)}  # at each place: the work done, and minus the instructions before it
    for i in range(first, last):
        if i not in best:
            continue
        line, (work, before) = instructions[i], best[i]
        done = work + bool(_WORK.search(line)), before - 1
        falls_through = i not in places or line.startswith("@")
        for j in {places.get(i, i + 1), i + 1 if falls_through else last + 1}:
            if i < j <= last:
                best[j] = max(best.get(j, done), done)
    return 1 - best[last][1]


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
