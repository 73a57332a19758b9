"""From a rung's source to machine code, by NVRTC through CuPy; needs no GPU."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

KERNELS = Path(__file__).parent / "kernels"
# NVRTC has no host functions, and takes declarations of them for the device's.
_OPTIONS = ("--std=c++17", "--device-as-default-execution-space")


class Image(NamedTuple):
    """Machine code, and the names that the kernels have in it."""

    image: bytes
    names: Mapping[str, str]


def cupy_cuda() -> Any:
    """The module `cupy.cuda`, loaded where it is first needed: CuPy is an extra.

    Raises:
        ModuleNotFoundError: without CuPy, with the command that installs it.
    """
    try:
        return importlib.import_module("cupy.cuda")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "CuPy compiles the prototypes and is not installed; "
            "run python -m pip install 'linattn-cuda[cupy]'."
        ) from error


@functools.cache
def headers() -> Path:
    """The folder of the device headers: beside the packages in a checkout, else in the wheel.

    Raises:
        RuntimeError: neither is there.
    """
    package = Path(__file__).parents[1]
    places = (*(x / "kernels-cuda" / "include" for x in package.parents[3:4]), package / "include")
    for place in places:
        if (place / "linattn" / "calls.h").is_file():
            return place
    searched = " and ".join(map(str, places))
    raise RuntimeError(
        f"The device headers were expected in {searched} and are in neither; install linattn-cuda "
        "again."
    )


@functools.cache
def compiled(
    source: str, kernels: tuple[str, ...], dtype: str, dim: int, value_dim: int, arch: str
) -> Image:
    """The kernels of `kernels/<source>.cu` for one dtype, pair of widths and architecture.

    Raises:
        RuntimeError: NVRTC did not compile it; the message is its log.
    """
    nvrtc = cupy_cuda().nvrtc
    path = KERNELS / f"{source}.cu"
    arguments = f"<linattn::Dtype::{dtype}, {dim}, {value_dim}>"
    expressions = {kernel: f"linattn::prototypes::{kernel}{arguments}" for kernel in kernels}
    options = (*_OPTIONS, f"--gpu-architecture={arch}", f"-I{headers()}", f"-I{KERNELS}")
    program = nvrtc.createProgram(path.read_text(encoding="utf-8"), path.name, (), ())
    try:
        for expression in expressions.values():
            nvrtc.addNameExpression(program, expression)
        nvrtc.compileProgram(program, options)
        names = {x: nvrtc.getLoweredName(program, name) for x, name in expressions.items()}
        # CuPy takes the last byte, which is zero, for the end of a string and leaves it out.
        return Image(nvrtc.getCUBIN(program) + b"\0", names)
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise RuntimeError(f"NVRTC did not compile {path} for {arch}: {error}\n{log}") from error
    finally:
        nvrtc.destroyProgram(program)
