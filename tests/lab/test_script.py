"""How scripts begin and end: settings before torch, presets, flags, exit codes."""

from __future__ import annotations

import dataclasses
import errno
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Annotated, Literal

import pytest
import torch
import tyro

from linattn_lab.script import (
    parse_flags,
    peek_flag,
    preset_flags,
    require_at_least,
    run_script,
)
from linattn_models.training import TrainingFlags


@dataclasses.dataclass(frozen=True)
class Flags:
    preset: Literal["smoke", "laptop"]
    training: Annotated[TrainingFlags, tyro.conf.arg(name="")]
    out: Path | None = None
    """Where it goes."""


@dataclasses.dataclass(frozen=True)
class Inner:
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner


PRESETS = {
    "smoke": Flags("smoke", TrainingFlags(steps=20, batch_size=2)),
    "laptop": Flags("laptop", TrainingFlags(steps=777, batch_size=64)),
}


def parse(*args: str) -> Flags:
    return preset_flags(PRESETS, description="Trains.", args=args)


def test_flags_override_the_preset_that_is_named() -> None:
    assert parse() == PRESETS["laptop"]
    for named in (("--preset", "smoke"), ("--preset=smoke",)):
        flags = parse("--steps", "7", *named, "--out", "there")
        training = TrainingFlags(steps=7, batch_size=2)
        assert flags == Flags("smoke", training, Path("there"))


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("--stepz", "3"), "--stepz"),
        (("--steps", "x"), "--steps"),
        (("--schedule", "sinus"), "--schedule"),
        (("--preset", "smok"), "--preset"),
    ],
)
def test_flags_that_do_not_parse_are_named_with_code_2(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], named: str
) -> None:
    with pytest.raises(SystemExit) as end:
        parse(*args)
    assert end.value.code == 2
    out, errors = capsys.readouterr()
    assert out == "" and named in errors


@pytest.mark.parametrize("flags", [["--help"], []])
def test_a_reader_that_has_ended_ends_the_script_quietly(flags: list[str]) -> None:
    lines = (
        "import sys",
        "from linattn_lab.script import parse_flags, run_script",
        "from linattn_models.training import TrainingConfig, TrainingFlags",
        "def main():",
        "    parse_flags(TrainingFlags, description='x', default=TrainingFlags(1, 1))",
        "    print('long ' * 10**6)",
        "run_script(main)",
    )
    command = [sys.executable, "-c", "\n".join(lines), *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 141


def test_a_flag_is_known_before_parsing() -> None:
    assert peek_flag("data-dir", "none", ["--data-dir", "x", "--data", "y"]) == "x"
    assert peek_flag("dataset", "digits", ["--data-dir", "x"]) == "digits"


@dataclasses.dataclass
class Several:
    lengths: tuple[int, ...]
    batch: int | None = None


@pytest.mark.parametrize("flags", [Several((3, 1, 2)), Several(()), Several((2,), batch=0)])
def test_a_flag_below_its_minimum_is_refused(flags: Several) -> None:
    least = {"lengths": 2, "batch": 1}
    require_at_least(Several((2, 3)), least)
    with pytest.raises(ValueError, match=r"--(lengths|batch)"):
        require_at_least(flags, least)


def exit_code(error: BaseException) -> int:
    """The exit code of a script whose main raises `error`."""

    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as end:
        run_script(main)
    return int(end.value.code)


def test_a_return_is_success(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # put back at the end
    with pytest.raises(SystemExit) as end:
        run_script(lambda: "ignored")
    assert end.value.code == 0
    assert capsys.readouterr() == ("", "")
    assert warnings.formatwarning("the disk is slow", UserWarning, "x.py", 1) == (
        "warning: the disk is slow\n"
    )


@pytest.mark.parametrize("flag", ["batch-size", "seed"])
def test_an_integer_of_more_than_64_bits_is_refused_by_its_flag(flag: str) -> None:
    with pytest.raises(ValueError, match=f"^--{flag}: expected"):
        parse(f"--{flag}", str(10**20))


def test_a_nested_integer_of_more_than_64_bits_is_refused_with_its_prefix() -> None:
    with pytest.raises(ValueError, match=r"^--inner\.seed: expected"):
        parse_flags(Outer, description=None, args=["--inner.seed", str(10**20)])


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (ValueError("head_dim must be 8,\n  got 7"), 2, "head_dim must be 8, got 7\n"),
        (OSError(errno.ENOENT, "No such file", "x.gz"), 2, "[Errno 2] No such file: 'x.gz'\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (KeyboardInterrupt("stopped after step 5"), 130, "stopped after step 5\n"),
        (MemoryError(), 2, "not enough memory, ask for a smaller model or batch\n"),
        (SystemExit(3), 3, ""),
    ],
)
def test_an_expected_end_is_a_sentence_and_a_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, sentence: str
) -> None:
    assert exit_code(error) == code
    assert capsys.readouterr() == ("", sentence)


def test_debug_shows_the_traceback_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINATTN_DEBUG", "1")
    assert exit_code(ValueError("no")) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("Traceback")
    assert errors.endswith("\nno\n")


def test_too_little_memory_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run_script(lambda: torch.empty(2**50))
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("not enough memory")


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(KeyError):
        run_script(lambda: {}["absent"])
    with pytest.raises(RuntimeError):
        run_script(lambda: torch.ones(2, 3) @ torch.ones(2, 3))


STARTED = """
import os
import linattn_lab.startup, linattn_lab.threads
print(*(os.environ.get(name) for name in ("GOMP_SPINCOUNT", "TQDM_DISABLE")))
"""


@pytest.mark.parametrize(
    ("variables", "settled"),
    [
        ({}, "5000 1"),
        ({"GOMP_SPINCOUNT": "7", "TQDM_DISABLE": "yes"}, "7 yes"),
        ({"OMP_WAIT_POLICY": "active"}, "None 1"),
    ],
)
def test_a_person_s_settings_hold(variables: dict[str, str], settled: str) -> None:
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "TQDM_DISABLE")
    usual = {name: value for name, value in os.environ.items() if name not in names}
    command, environment = [sys.executable, "-c", STARTED], {**usual, **variables}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == settled


def without(module: str, script: Path) -> str:
    """What a script prints on stderr that imports what is not there."""
    script.write_text(f"import linattn_lab.startup\nimport {module}\n")
    command = [sys.executable, str(script)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    return run.stderr


def test_a_package_that_is_not_installed_is_one_sentence(tmp_path: Path) -> None:
    said = without("nothing_of_this_name", tmp_path / "script.py")
    assert "nothing_of_this_name" in said and str(tmp_path / "README.md") in said
    assert "Traceback" not in said and said.count("\n") == 1


def test_a_module_that_an_installed_package_lacks_keeps_its_traceback(tmp_path: Path) -> None:
    assert "Traceback" in without("json.nothing_of_this_name", tmp_path / "script.py")
