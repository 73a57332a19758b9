"""Builds the module `_emulated`: the kernels' own source, compiled for the CPU."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
    programs = [program("cmake"), program("ninja"), _compiler()]
    # A folder for each set of tools: CMake keeps their paths, and ninja builds what has changed.
    tools = "\n".join([sys.executable, *programs])
    folder = ROOT / "build" / f"emulated-{hashlib.sha256(tools.encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        _build(folder, *programs)
    (file,) = folder.glob("_emulated*.so")
    spec = importlib.util.spec_from_file_location("_emulated", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def program(name: str) -> str:
    """Where a program of the build is; skips the test where it is not."""
    return shutil.which(name, path=PATH) or pytest.skip(f"{name} is needed to build the emulation")


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    pytest.skip("a C++ compiler is needed to build the emulation")


def _build(folder: Path, cmake: str, ninja: str, compiler: str) -> None:
    pybind11 = pytest.importorskip("pybind11", reason="pybind11 is needed to build the emulation")
    _run(
        cmake, "-G", "Ninja", "-S", str(SOURCE), "-B", str(folder),
        "-D", "LINATTN_EMULATED=ON", "-D", f"CMAKE_MAKE_PROGRAM={ninja}",
        "-D", f"CMAKE_CXX_COMPILER={compiler}", "-D", f"Python_EXECUTABLE={sys.executable}",
        "-D", f"pybind11_DIR={pybind11.get_cmake_dir()}",
    )  # fmt: skip
    _run(cmake, "--build", str(folder))


def _run(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{ended.stdout}{ended.stderr}", pytrace=False)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time: tests run side by side, and one builds for all."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
