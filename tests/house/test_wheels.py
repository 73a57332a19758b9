"""What `nox -s wheels` relies on: the interpreters that it finds, and code for every machine."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import noxfile
from tests.cuda.emulated_build import program


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds all the interpreters that there are."""
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "no-pyenv"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("command", "bound"),
    [
        ("g++ -O3 -MD -MT module.o -c src-mavx/module.cpp", False),
        ("g++ -DLINATTN_ISA=avx2 -O3 -mavx2 -mfma -c entry.cpp", False),
        ("g++ -DLINATTN_ISA=avx2 -march=native -mavx2 -c entry.cpp", True),
        ("g++ -O3 -mavx2 -c module.cpp", True),
        ("g++ -mcpu=neoverse-n1 -c module.cpp", True),
    ],
)
def test_flags_for_some_machines_are_found(command: str, bound: bool) -> None:
    assert noxfile.has_machine_flags(command) is bound


def test_only_kernels_are_compiled_for_some_machines(repository: Path, tmp_path: Path) -> None:
    flags = ("CFLAGS", "CXXFLAGS", "CPPFLAGS")
    subprocess.run(
        [
            program("cmake"), "-G", "Ninja", "-S", str(repository / "packages/linattn-cpu"),
            "-B", str(tmp_path), "-D", f"CMAKE_MAKE_PROGRAM={program('ninja')}",
            "-D", "CMAKE_EXPORT_COMPILE_COMMANDS=ON", "-D", "LINATTN_EXERCISE=ON",
            "-D", "LINATTN_ISA=all",
        ],
        env={name: value for name, value in os.environ.items() if name not in flags}, check=True,
    )  # fmt: skip
    commands = json.loads((tmp_path / "compile_commands.json").read_text())

    assert any("LINATTN_ISA=baseline" in command["command"] for command in commands)
    bound = [x["file"] for x in commands if noxfile.has_machine_flags(x["command"])]
    assert bound == []
