"""How scripts begin and end: presets, flags, exit codes."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import warnings
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import tyro

from linattn_models.training import (
    TrainingFlags,
    adamw_flags,
    parse_flags,
    peek_flag,
    preset_flags,
    require_at_least,
    run_script,
)


@dataclasses.dataclass(frozen=True)
class Flags:
    preset: Literal["smoke", "paper"]
    training: tyro.conf.OmitArgPrefixes[TrainingFlags]
    out: Path | None = None
    """Where it goes."""


PRESETS = {
    "smoke": Flags("smoke", TrainingFlags(steps=20, batch_size=2)),
    "paper": Flags("paper", TrainingFlags(steps=777, batch_size=64)),
}


DESCRIPTION = "Trains.\n\n    python it.py\n\n" + "And a sentence that goes on. " * 5


def parsed(*args: str) -> Flags:
    return preset_flags(PRESETS, "paper", description=DESCRIPTION, args=args)


def test_flags_override_the_preset_that_is_named() -> None:
    assert parsed() == PRESETS["paper"]
    for named in (("--preset", "smoke"), ("--preset=smoke",)):
        flags = parsed("--steps", "7", *named, "--out", "there")
        training = TrainingFlags(steps=7, batch_size=2)
        assert flags == Flags("smoke", training, Path("there"))


def test_an_unknown_preset_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="--preset: expected a known name, got 'smok'; did you"):
        parsed("--preset", "smok")
    with pytest.raises(ValueError, match="known are 'smoke', 'paper'"):
        preset_flags(PRESETS, "laptop", description="", args=["--preset"])


def test_help_shows_the_values_of_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parsed("--preset", "smoke", "--help")
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "    python it.py\n" in text
    assert "[-h]" in text
    assert "default: 20" in text and "777" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "options\n" in text and not set(text) & set("╭│╰─") and "---" not in text


def test_lines_of_help_are_filled_and_do_not_follow_docstrings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        parsed("--help")
    compared = 0
    for line, following in itertools.pairwise(capsys.readouterr().out.splitlines()):
        column = len(following) - len(following.lstrip())
        if column > 8 and line[column - 2 : column] == "  ":
            compared += 1
            assert len(f"{line} {following.split()[0]}") > 80
    assert compared > 5


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--stepz", "3"), "Unrecognized options: --stepz, 3; did you mean --steps?"),
        (("--zebra",), "Unrecognized options: --zebra; --help lists the flags."),
        (
            ("--steps", "x"),
            "Error parsing --steps: invalid literal for int() with base 10: 'x'; "
            "--help lists the flags.",
        ),
        (
            ("--schedule", "sinus"),
            "invalid choice 'sinus' for argument '--schedule'. Expected one of ('constant', "
            "'cosine', 'trapezoid', 'step', 'plateau'); --help lists the flags.",
        ),
    ],
)
def test_flags_that_do_not_parse_are_one_sentence_and_code_2(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(SystemExit) as end:
        parsed(*args)
    assert end.value.code == 2
    assert capsys.readouterr() == ("", f"{sentence}\n")


def test_a_flag_that_is_required_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_flags(Flags, description="Trains.", args=["--preset", "smoke"])
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        "expected --steps INT, --batch-size INT, got none; --help lists the flags.\n"
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"steps": 0}, "--steps: expected an integer"), ({"clip_norm": -1.0}, "--clip-norm: exp")],
)
def test_a_flag_that_is_out_of_range_is_named_as_it_is_written(
    fields: dict[str, Any], words: str
) -> None:
    flags = dataclasses.replace(adamw_flags(steps=20, batch_size=2), **fields)
    with pytest.raises(ValueError, match=words):
        flags.config()


def test_a_flag_is_known_before_parsing() -> None:
    assert peek_flag("data-dir", "none", ["--data-dir", "x", "--data", "y"]) == "x"
    assert peek_flag("dataset", "digits", ["--data-dir", "x"]) == "digits"


def test_a_flag_below_its_minimum_is_refused() -> None:
    with pytest.raises(ValueError, match="--batch-size: expected 3 or more, got 2"):
        require_at_least(PRESETS["smoke"].training, {"drop_at": 1, "batch_size": 3})


@dataclasses.dataclass
class Several:
    lengths: tuple[int, ...]


@pytest.mark.parametrize(("lengths", "got"), [((3, 1, 2), "3 1 2"), ((), "none")])
def test_of_several_numbers_each_has_to_reach_the_minimum(
    lengths: tuple[int, ...], got: str
) -> None:
    require_at_least(Several((2, 3)), {"lengths": 2})
    with pytest.raises(ValueError, match=f"--lengths: expected numbers of 2 or more, got {got}"):
        require_at_least(Several(lengths), {"lengths": 2})


def failing(error: BaseException) -> int:
    """The exit code of a script whose main raises `error`."""

    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as end:
        run_script(main)
    return int(end.value.code)


def test_a_return_is_success(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run_script(lambda: "ignored")
    assert end.value.code == 0
    assert capsys.readouterr() == ("", "")


def test_a_warning_is_its_sentence_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # put back at the end
    with pytest.raises(SystemExit):
        run_script(lambda: None)
    assert warnings.formatwarning("the disk is slow", UserWarning, "x.py", 1) == (
        "warning: the disk is slow\n"
    )
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("head_dim must be 8,\n  got 7"), "head_dim must be 8, got 7"),
        (OSError(errno.ENOENT, "No such file", "x.gz"), "[Errno 2] No such file: 'x.gz'"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(
    capsys: pytest.CaptureFixture[str], error: Exception, sentence: str
) -> None:
    assert failing(error) == 2
    assert capsys.readouterr() == ("", f"{sentence}\n")


def test_debug_shows_the_traceback_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINATTN_DEBUG", "1")
    assert failing(ValueError("no")) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("Traceback")
    assert errors.endswith("\nno\n")


def test_an_interruption_is_code_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert failing(KeyboardInterrupt("stopped after step 5")) == 130
    assert capsys.readouterr().err == "stopped after step 5\n"


def test_too_little_memory_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        torch.empty(2**50)

    with pytest.raises(SystemExit) as end:
        run_script(main)
    assert end.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith("not enough memory, ask for a smaller model or batch: ")
    assert errors.count("\n") == 1


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(KeyError):
        run_script(lambda: {}["absent"])
    with pytest.raises(RuntimeError, match="shapes"):
        run_script(lambda: torch.ones(2, 3) @ torch.ones(2, 3))


def test_the_exit_code_of_main_is_that_of_the_script() -> None:
    assert failing(SystemExit(3)) == 3
