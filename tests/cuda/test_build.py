"""How the package is configured: by which compiler its kernels are built, and what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda.emulated_build import SOURCE, program


def configure(
    folder: Path, option: str, release: str | None, *, nvcc: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """CMake's first step: with `nvcc`, one of this release that compiles nothing, or none."""
    pybind11 = pytest.importorskip("pybind11")
    compiler = Path(nvcc or folder / "nvcc")
    if release is not None:
        said = f"echo 'Cuda compilation tools, release {release}'"
        compiler.write_text(f'#!/bin/sh\n{said}\ntest "$1" = --version\n')
        compiler.chmod(0o755)
    # Architectures that the caller has chosen for its own build would change what is refused.
    inherited = {name: value for name, value in os.environ.items() if name != "CUDAARCHS"}
    return subprocess.run(
        [
            program("cmake"), "-G", "Ninja", "-S", str(SOURCE), "-B", str(folder / "build"),
            "-D", f"CMAKE_MAKE_PROGRAM={program('ninja')}",
            "-D", f"Python_EXECUTABLE={sys.executable}",
            "-D", f"pybind11_DIR={pybind11.get_cmake_dir()}", "-D", f"LINATTN_CUDA={option}",
        ],
        env={**inherited, "CUDACXX": str(compiler), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("option", "release"),
    [
        ("AUTO", None),
        ("AUTO", "12.0, V12.0.140"),
        ("OFF", None),
    ],
)
def test_without_a_useful_nvcc(option: str, release: str | None, tmp_path: Path) -> None:
    """The package is built without kernels, and points to those of Triton."""
    ended = configure(tmp_path, option, release)

    assert ended.returncode == 0, ended.stderr
    rules = (tmp_path / "build" / "build.ninja").read_text()
    assert set(re.findall(r'LINATTN_BUILT_WITH=\\"(.*?)\\"', rules)) == {""}
    assert "register_attention" not in rules
    assert ("linattn-triton" in ended.stderr) == (option == "AUTO")


@pytest.mark.parametrize(
    ("option", "release", "named"),
    [
        ("ON", None, "none was found"),
        ("ON", "12.0, V12.0.140", "CUDA 12.0"),
        ("ON", "13.0, V13.0.88", "compiles nothing here"),
        ("maybe", None, "LINATTN_CUDA"),
    ],
)
def test_a_build_that_cannot_be_is_refused(
    option: str, release: str | None, named: str, tmp_path: Path
) -> None:
    ended = configure(tmp_path, option, release)

    assert ended.returncode != 0
    assert named in " ".join(ended.stderr.split())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_a_build_folder_takes_other_architectures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an interrupted build, or with another CUDAARCHS."""
    nvcc = shutil.which("nvcc")
    for chosen, code in (
        ("", "75, 80, 90, 100, 120, PTX 120"),
        ("90-real", "90"),
        ("80-real", "80"),
    ):
        ended = configure(tmp_path, "ON", None, nvcc=nvcc, CUDAARCHS=chosen)
        assert ended.returncode == 0, ended.stderr
        assert f"sm {code}" in (tmp_path / "build" / "build.ninja").read_text()


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
