"""The kernels compiled by NVRTC when they are first called, and kept on disk for later processes.

A build of linattn-cuda without nvcc holds everything but the kernels: it launches them as the build
by nvcc does, from the same C++, and asks `load_or_compile` for their machine code.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import uuid
from pathlib import Path

from linattn_core.errors import expected
from linattn_cuda import _native, nvrtc

# Kernels whose header has another name.
_HEADERS = {"step_heads": "step"}


@functools.cache
def find_headers() -> Path:
    """The folder of the device headers, beside the compiled module.

    Those of a checkout may be newer than the module, which hands its structs to the kernels.
    """
    folder = Path(_native.__file__).parent / "include"
    first = folder / "linattn" / "calls.h"
    if not first.is_file():
        advice = "install linattn-cuda again"
        raise RuntimeError(expected("device headers", first, "no such file", advice))
    return folder


def cache_folder() -> Path:
    """Where machine code is kept: $LINATTN_CACHE, or "linattn" in the user's folder for caches."""
    chosen = os.environ.get("LINATTN_CACHE")
    if chosen:
        return Path(chosen)
    caches = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(caches) if caches else Path.home() / ".cache") / "linattn"
    except RuntimeError:  # a user without a home, as in some containers: nothing is kept
        return Path(os.devnull) / "linattn"


def compile_kernels(architecture: str) -> Path:
    """Compiles all kernels ahead of their first calls, where there may be no GPU.

    Some two minutes on one core; what is kept on disk already is not compiled again. The build of
    linattn-cuda by nvcc does not need it.

    Args:
        architecture: as "sm_90", for GPUs of compute capability 9.0.

    Returns:
        The folder that they are in, to be carried to another machine and named in LINATTN_CACHE.

    Raises:
        RuntimeError: without NVRTC, or where it does not compile for this architecture.
        OSError: the folder cannot be written.
    """
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    for kernel in _native.kernel_names():
        load_or_compile(kernel, architecture)
    return folder


def load_or_compile(kernel: str, architecture: str) -> tuple[bytes, str]:
    """The machine code of one kernel, and the kernel's name in it; from disk if it is there.

    Args:
        kernel: its name as C++ in namespace linattn writes it.
        architecture: as "sm_90".
    """
    file = cache_folder() / f"{_key(kernel, architecture)}.cubin"
    stored = _read(file)
    if stored is not None:
        return stored
    image = nvrtc.compile_source(_source(kernel), (kernel,), architecture, (find_headers(),))
    code, symbol = image.code, image.symbols[kernel]
    # Without a disk to write to, each process compiles for itself.
    with contextlib.suppress(OSError):
        _write(file, code, symbol)
    return code, symbol


def _source(kernel: str) -> str:
    name = kernel.partition("<")[0]
    header = _HEADERS.get(name, name)
    return f'#include "linattn/device/{header}.cuh"\nusing namespace linattn;\n'


def _key(kernel: str, architecture: str) -> str:
    """Differs wherever the machine code may."""
    options = (*nvrtc.OPTIONS, nvrtc.version(), architecture)
    what = "\n".join((*options, kernel, _source(kernel), _digest_of_headers(find_headers())))
    return hashlib.sha256(what.encode()).hexdigest()


@functools.cache
def _digest_of_headers(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _read(file: Path) -> tuple[bytes, str] | None:
    """Machine code and the kernel's name; None where they are not there, or damaged."""
    try:
        digest, _, content = file.read_bytes().partition(b"\n")
    except OSError:
        return None
    if digest != _digest(content):
        return None
    symbol, _, code = content.partition(b"\n")
    return code, symbol.decode()


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _write(file: Path, code: bytes, symbol: str) -> None:
    """A line with the digest of what follows, one with the kernel's name, the code.

    Complete or not at all: other processes may write the same file meanwhile.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    content = f"{symbol}\n".encode() + code
    part = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
    try:
        part.write_bytes(_digest(content) + b"\n" + content)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
