"""Builds the kernels' own source for the CPU: `_emulated`, and the ladder."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "packages" / "linattn-cuda"
# Where Python's own programs are, first: an environment has its cmake and ninja there.
PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))


@functools.cache
def emulated_module() -> ModuleType:
    """The module, built if its sources have changed; skips the test where nothing can build it."""
    return _module("_emulated", _built("_emulated"))


@functools.cache
def ladder_library() -> ctypes.CDLL:
    """The kernels of linattn_cuda.prototypes, behind the functions of prototypes/harness.cpp."""
    folder = _built("emulated_ladder")
    library = ctypes.CDLL(str(folder / "libemulated_ladder.so"))
    library.prototype_message.restype = ctypes.c_char_p
    return library


def _built(target: str) -> Path:
    """The folder in which a target was built."""
    programs = [program("cmake"), program("ninja"), find_compiler()]
    # A folder for each set of tools: CMake keeps their paths, and ninja builds what has changed.
    tools = "\n".join([sys.executable, *programs])
    folder = ROOT / "build" / f"emulated-{hashlib.sha256(tools.encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # tests run side by side, and one builds for all
        fcntl.flock(lock, fcntl.LOCK_EX)
        _build(folder, target, *programs)
    return folder


def _module(name: str, folder: Path) -> ModuleType:
    (file,) = folder.glob(f"{name}*.so")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def program(name: str) -> str:
    """Where a program of the build is; skips the test where it is not."""
    return shutil.which(name, path=PATH) or pytest.skip(f"{name} is needed to build the emulation")


def find_compiler() -> str:
    """The C++ compiler; skips the test where there is none."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    pytest.skip("a C++ compiler is needed to build the emulation")


def _build(folder: Path, target: str, cmake: str, ninja: str, compiler: str) -> None:
    pybind11 = pytest.importorskip("pybind11", reason="pybind11 is needed to build the emulation")
    _run(
        cmake, "-G", "Ninja", "-S", str(SOURCE), "-B", str(folder),
        "-D", "LINATTN_EMULATED=ON", "-D", f"CMAKE_MAKE_PROGRAM={ninja}",
        "-D", f"CMAKE_CXX_COMPILER={compiler}", "-D", f"Python_EXECUTABLE={sys.executable}",
        "-D", f"pybind11_DIR={pybind11.get_cmake_dir()}",
    )  # fmt: skip
    _run(cmake, "--build", str(folder), "--target", target)


def _run(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{ended.stdout}{ended.stderr}", pytrace=False)
