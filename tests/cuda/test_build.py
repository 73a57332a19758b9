"""How the package is built: what is missing is said, in seconds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda.emulated_build import SOURCE, program


def configure(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """CMake's first step; the build has not begun when it ends."""
    pybind11 = pytest.importorskip("pybind11")
    # Architectures that the caller has chosen for its own build would change what is refused.
    inherited = {name: value for name, value in os.environ.items() if name != "CUDAARCHS"}
    return subprocess.run(
        [
            program("cmake"), "-G", "Ninja", "-S", str(SOURCE), "-B", str(folder),
            "-D", f"CMAKE_MAKE_PROGRAM={program('ninja')}",
            "-D", f"Python_EXECUTABLE={sys.executable}",
            "-D", f"pybind11_DIR={pybind11.get_cmake_dir()}", *options,
        ],
        env={**inherited, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def no_nvcc(tmp_path: Path) -> str:
    """What CUDACXX names where the toolkit is not installed."""
    return str(tmp_path / "no" / "nvcc")


def test_on_without_nvcc_says_what_to_install(tmp_path: Path, no_nvcc: str) -> None:
    ended = configure(tmp_path, "-D", "LINATTN_CUDA=ON", CUDACXX=no_nvcc)

    assert ended.returncode != 0
    told = " ".join(ended.stderr.split())
    assert "LINATTN_CUDA=ON needs nvcc of CUDA 12.8 or later, and none was found" in told
    assert "install the CUDA toolkit and put its folder bin into PATH" in told
    assert "with LINATTN_CUDA=NVRTC the kernels are compiled when they are first called" in told


def built_with(folder: Path) -> str:
    """What the module will say of itself."""
    (found,) = set(
        re.findall(r'LINATTN_BUILT_WITH=\\"(.*?)\\"', (folder / "build.ninja").read_text())
    )
    return str(found)


def test_auto_without_nvcc_leaves_the_kernels_to_nvrtc(tmp_path: Path, no_nvcc: str) -> None:
    ended = configure(tmp_path, CUDACXX=no_nvcc)

    assert ended.returncode == 0, ended.stderr
    told = " ".join(ended.stderr.split())
    assert "its CUDA kernels will be compiled by NVRTC when they are first called" in told
    assert built_with(tmp_path) == "NVRTC"


def test_nvrtc_looks_for_no_nvcc(tmp_path: Path) -> None:
    ended = configure(tmp_path, "-D", "LINATTN_CUDA=NVRTC")

    assert ended.returncode == 0 and "nvcc" not in ended.stderr
    assert built_with(tmp_path) == "NVRTC"


def test_off_builds_without_kernels(tmp_path: Path) -> None:
    ended = configure(tmp_path, "-D", "LINATTN_CUDA=OFF")

    assert ended.returncode == 0, ended.stderr
    assert built_with(tmp_path) == ""
    assert "register_attention" not in (tmp_path / "build.ninja").read_text()


def test_another_word_is_refused(tmp_path: Path) -> None:
    ended = configure(tmp_path, "-D", "LINATTN_CUDA=maybe")

    assert ended.returncode != 0
    assert 'LINATTN_CUDA: expected AUTO, ON, NVRTC or OFF, got "maybe"' in ended.stderr


def fake_nvcc(folder: Path, says: str) -> str:
    """A program in nvcc's place that compiles nothing."""
    nvcc = folder / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho '{says}'\ntest \"$1\" = --version\n")
    nvcc.chmod(0o755)
    return str(nvcc)


def test_an_old_nvcc_is_named_with_its_version(tmp_path: Path) -> None:
    nvcc = fake_nvcc(tmp_path, "Cuda compilation tools, release 12.0, V12.0.140")
    on = configure(tmp_path / "on", "-D", "LINATTN_CUDA=ON", CUDACXX=nvcc)
    auto = configure(tmp_path / "auto", CUDACXX=nvcc)

    told = " ".join(on.stderr.split())
    assert on.returncode != 0
    assert "is of CUDA 12.0; install a newer CUDA toolkit, or name what this one" in told
    assert auto.returncode == 0, auto.stderr
    assert built_with(tmp_path / "auto") == "NVRTC"


def test_an_nvcc_that_compiles_nothing_is_not_called_absent(tmp_path: Path) -> None:
    nvcc = fake_nvcc(tmp_path, "Cuda compilation tools, release 13.0, V13.0.88")
    ended = configure(tmp_path / "on", "-D", "LINATTN_CUDA=ON", CUDACXX=nvcc)

    assert ended.returncode != 0
    assert "was found and compiles nothing here" in " ".join(ended.stderr.split())


@pytest.mark.parametrize(
    ("architectures", "code"),
    [
        ("75-real;90-real;120", "75, 90, 120, PTX 120"),
        ("90-real", "90"),
        ("90a-real;100-virtual", "90a, PTX 100"),
        ("native", "86"),
        ("all-major", "75, 90, PTX 90"),
    ],
)
def test_what_was_built_is_recorded(architectures: str, code: str, tmp_path: Path) -> None:
    script = tmp_path / "script.cmake"
    script.write_text(f"""
include("{SOURCE}/architectures.cmake")
set(CMAKE_CUDA_ARCHITECTURES_NATIVE 86-real)  # as CMake finds them with its compiler
set(CMAKE_CUDA_ARCHITECTURES_ALL_MAJOR 75 90)
code_of("{architectures}" CODE)
message("${{CODE}}")
""")
    ended = subprocess.run(
        [program("cmake"), "-P", str(script)], capture_output=True, text=True, check=True
    )

    assert ended.stderr.strip() == code
