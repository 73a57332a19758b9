"""How scripts end."""

from __future__ import annotations

import errno

import pytest
import torch

from linattn_models.training import run_script


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


def test_the_exit_code_of_main_stands() -> None:
    assert failing(SystemExit(3)) == 3
