"""What `nox -s wheels` relies on: the interpreters that it finds, and code for every machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
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


def script(path: Path, line: str) -> Path:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


def test_interpreters_that_do_not_start_are_passed_over(machine: Path) -> None:
    works = script(machine / "python3.11", f'exec "{sys.executable}" "$@"')
    script(machine / "python3.12", "exit 127")  # as a shim whose version is not enabled
    script(machine / "python3.11-config", f'exec "{sys.executable}" "$@"')

    assert noxfile.interpreters() == {sysconfig.get_config_var("SOABI"): works}


def test_an_interpreter_is_taken_once(machine: Path) -> None:
    for name in ("python3.11", "python3.12"):
        script(machine / name, f'exec "{sys.executable}" "$@"')

    assert len(noxfile.interpreters()) == 1


def test_an_interpreter_without_headers_is_passed_over(machine: Path) -> None:
    script(machine / "python3.11", f'exec "{sys.executable}" -c "raise SystemExit(1)"')

    assert noxfile.interpreters() == {}


def test_a_wheel_is_made_again_after_a_change_of_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noxfile, "ROOT", tmp_path)
    source = tmp_path / "native" / "kernels.cpp"
    source.parent.mkdir()
    source.write_text("int one;")
    first = noxfile.hash_sources([source.parent], "gcc")

    (source.parent / "build").mkdir()
    (source.parent / "build" / "kernels.o").touch()
    assert noxfile.hash_sources([source.parent], "gcc") == first
    assert noxfile.hash_sources([source.parent], "clang") != first
    source.rename(source.with_name("other.cpp"))
    renamed = noxfile.hash_sources([source.parent], "gcc")
    source.with_name("other.cpp").write_text("int two;")
    assert len({first, renamed, noxfile.hash_sources([source.parent], "gcc")}) == 3


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


def test_functions_that_a_linker_could_take_for_others_are_found() -> None:
    own = "0000 W linattn::avx512::Forward<float>::add()\n0000 V DW.ref.__gxx_personality_v0\n"
    other = "0000 W std::vector<int>::push_back(int&&)"

    assert noxfile.shared_functions(own + "0010 T linattn::run()\n") == []
    assert noxfile.shared_functions(own + other) == [other]


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
