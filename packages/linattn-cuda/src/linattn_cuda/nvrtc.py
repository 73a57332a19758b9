"""NVRTC, the compiler of CUDA as a library: C++ in, machine code out; needs neither nvcc nor a GPU.

The library comes with torch's wheels for CUDA, or by `python -m pip install nvidia-cuda-nvrtc`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

from linattn_core.errors import expected

# NVRTC has no host functions, and takes declarations of them for the device's.
OPTIONS = ("--std=c++17", "--device-as-default-execution-space")


class Image(NamedTuple):
    """Machine code, and the names that kernels have in it, by their names in C++."""

    code: bytes
    symbols: Mapping[str, str]


class _Library(NamedTuple):
    """What was loaded, and under which name or path."""

    functions: ctypes.CDLL
    path: str

    def call(self, function: str, *arguments: object) -> None:
        error = getattr(self.functions, function)(*arguments)
        if error:
            describe = self.functions.nvrtcGetErrorString
            describe.restype = ctypes.c_char_p
            raise RuntimeError(f"{function} of {self.path} failed: {describe(error).decode()}.")

    def read(self, what: str, program: ctypes.c_void_p) -> bytes:
        """What nvrtcGet`what` gives: a log or machine code."""
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        memory = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, memory)
        return memory.raw


def find_missing_library() -> str | None:
    """None if there is an NVRTC, or what to do, as a sentence."""
    if _library() is not None:
        return None
    return (
        "its CUDA kernels are compiled by NVRTC when they are first called, and libnvrtc was not "
        f"found; run `python -m pip install {package(_major())}`."
    )


def package(major: int) -> str:
    """What pip calls the NVRTC of this major version of CUDA."""
    return "nvidia-cuda-nvrtc" if major > 12 else f"nvidia-cuda-nvrtc-cu{major}"


@functools.cache
def version() -> str:
    """That of CUDA, as "13.0"."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _require_library().call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


@functools.cache
def architectures() -> tuple[str, ...]:
    """Those that this NVRTC compiles for: ("sm_75", "sm_80", ...)."""
    count = ctypes.c_int()
    _require_library().call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
    numbers = (ctypes.c_int * count.value)()
    _require_library().call("nvrtcGetSupportedArchs", numbers)
    return tuple(f"sm_{x}" for x in numbers)


def choose_architecture(architecture: str) -> str | None:
    """Of `architectures()`, the newest whose machine code a GPU of this architecture runs.

    None where there is none: it is of the same major version, and of no later minor one.
    """
    number = architecture.removeprefix("sm_")
    if not number.isdecimal():  # as 90a, whose code runs nowhere else
        return None
    major, minor = divmod(int(number), 10)
    known = (int(x.removeprefix("sm_")) for x in architectures())
    minors = [x % 10 for x in known if x // 10 == major and x % 10 <= minor]
    return f"sm_{major}{max(minors)}" if minors else None


def compile_source(
    source: str, kernels: Sequence[str], architecture: str, folders: Sequence[Path]
) -> Image:
    """The kernels of a source, named by C++ expressions, for an architecture as "sm_90".

    Args:
        source: C++17.
        kernels: names of functions or of instances of templates.
        architecture: that of the GPU; where NVRTC does not know it, the code is for the one by
            which it is `choose_architecture`.
        folders: where headers are looked for.
    """
    library, program = _require_library(), ctypes.c_void_p()
    known = choose_architecture(architecture) or architecture
    options = [*OPTIONS, f"--gpu-architecture={known}", *(f"-I{x}" for x in folders)]
    library.call(
        "nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None
    )
    try:
        for kernel in kernels:
            library.call("nvrtcAddNameExpression", program, kernel.encode())
        _compile(library, program, options)
        symbols = {kernel: _symbol(library, program, kernel) for kernel in kernels}
        return Image(library.read("CUBIN", program), symbols)
    finally:
        library.call("nvrtcDestroyProgram", ctypes.byref(program))


def _compile(library: _Library, program: ctypes.c_void_p, options: Sequence[str]) -> None:
    array = (ctypes.c_char_p * len(options))(*(x.encode() for x in options))
    try:
        library.call("nvrtcCompileProgram", program, len(options), array)
    except RuntimeError as error:
        log = library.read("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
        raise RuntimeError(f"{error} Options: {' '.join(options)}\n{log}") from None


def _symbol(library: _Library, program: ctypes.c_void_p, kernel: str) -> str:
    name = ctypes.c_char_p()
    library.call("nvrtcGetLoweredName", program, kernel.encode(), ctypes.byref(name))
    return (name.value or b"").decode()


def _require_library() -> _Library:
    library = _library()
    if library is None:
        advice = f"run python -m pip install {package(_major())}"
        raise RuntimeError(expected("NVRTC", "libnvrtc", "no such library", advice))
    return library


@functools.cache
def _library() -> _Library | None:
    for path in _places():
        try:
            return _Library(_open_library(Path(path)), path)
        except OSError:
            continue
    return None


def _open_library(path: Path) -> ctypes.CDLL:
    if path.is_absolute():
        # What NVRTC opens later by its name alone, and finds only if it is loaded.
        for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins))
    return ctypes.CDLL(str(path))


def _major() -> int:
    """That of torch's own CUDA."""
    return int((torch.version.cuda or "13").partition(".")[0])


def _places() -> Iterator[str]:
    """Of torch's own CUDA first, whose machine code its driver knows; pip's before the system's."""
    nvidia = find_spec("nvidia")
    folders = nvidia.submodule_search_locations if nvidia is not None else None
    for major in dict.fromkeys((_major(), 13, 12)):
        name = f"libnvrtc.so.{major}"
        for folder in folders or ():
            yield from map(str, Path(folder).glob(f"*/lib/{name}"))
        yield name
