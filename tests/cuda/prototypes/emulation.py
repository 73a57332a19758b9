"""Runs rungs on the CPU: their kernels compiled by a C++ compiler over the host emulation."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import subprocess
from pathlib import Path

import pytest
import torch

from linattn_cuda import _native
from linattn_cuda.prototypes.ladder import KERNELS, Launcher, Run
from tests.cuda.emulated_build import ROOT, find_compiler, lock

CUDA = ROOT / "kernels-cuda"
SOURCES = (Path(__file__).parent / "harness.cpp", *sorted((CUDA / "emulation").glob("*.cpp")))
INCLUDED = (CUDA / "emulation", CUDA / "include", KERNELS)
OPTIONS = (
    "-std=c++17", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-DLINATTN_EMULATED",
    "-Wall", "-Wextra", "-Werror", "-pthread",
)  # fmt: skip


def emulated(multiprocessors: int = 1) -> Launcher:
    """What rungs can run on instead of a GPU, on CPU tensors."""
    return Launcher(_launch, lambda device: multiprocessors)


def set_order(seed: int) -> None:
    """The order in which blocks, warps and lanes run: 0 their own, -1 the reverse, or drawn."""
    _library().set_prototype_order(seed)


def _launch(run: Run, device: torch.device) -> None:
    library, problem = _library(), run.problem
    dtype = int(_native.Dtype.__members__[problem.dtype])
    for kernel, (x, y), threads, shared in run.launches:
        error = library.run_prototype(
            kernel.encode(), dtype, *problem.widths, ctypes.c_longlong(x), y, threads, shared,
            ctypes.byref(run.arguments),
        )  # fmt: skip
        assert error != -1, f"harness.cpp compiles no {kernel} for {problem.dtype, problem.widths}"
        assert error != -2, library.prototype_message().decode()
        assert error == 0, f"CUDA error {error} of {kernel}"


@functools.cache
def _library() -> ctypes.CDLL:
    compiler = find_compiler()
    # Named by what it is made of.
    file = ROOT / "build" / f"prototypes-{_digest(compiler)}.so"
    file.parent.mkdir(exist_ok=True)
    with lock(file.parent / "prototypes.lock"):
        if not file.exists():
            for old in file.parent.glob("prototypes-*.so"):
                old.unlink()
            _compile(compiler, file)
    library = ctypes.CDLL(str(file))
    library.prototype_message.restype = ctypes.c_char_p
    return library


def _digest(compiler: str) -> str:
    files = {x for folder in INCLUDED for x in folder.rglob("*") if x.is_file()} | set(SOURCES)
    digest = hashlib.sha256(repr((compiler, OPTIONS)).encode())
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _compile(compiler: str, file: Path) -> None:
    includes = (f"-I{x}" for x in (CUDA, *INCLUDED[1:]))
    partial = file.with_suffix(".partial")
    ended = subprocess.run(
        [compiler, *OPTIONS, *includes, *map(str, SOURCES), "-o", str(partial)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ended.returncode != 0:
        pytest.fail(ended.stderr, pytrace=False)
    partial.rename(file)
