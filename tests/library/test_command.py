"""linattn-run draws the tokens of Python, on this machine and on ARM."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from linattn_models import (
    AutoregressiveTransformer,
    CharacterTokenizer,
    TransformerConfig,
    export_decoder,
)
from tests.library.configurations import Case, random_case
from tests.library.linattn_library import FILE, compile_for

OPTIONS = {
    "temperature": "-t", "top_k": "-k", "top_p": "-P", "min_p": "-m",
    "repetition_penalty": "-r", "seed": "-s",
}  # fmt: skip
MACHINE_AT, ARM = 18, 183  # where an ELF file names its processor, and the name of 64-bit ARM


def test_tokens_are_those_of_python(tmp_path: Path) -> None:
    if not FILE.is_file():
        pytest.skip("linattn-run is not installed")
    check_tokens([FILE.parent.parent / "bin" / "linattn-run"], tmp_path, range(12))


@pytest.mark.parametrize(
    "flags",
    [
        ["-n"], ["-i"], ["-o"], ["-n", "-1"], ["-n", "1e3"], ["-n", "9" * 30], ["-t", ""],
        ["-t", "x"], ["-s", str(2**63)], ["-j", "-1"], ["-p", "0x5"], ["-p", "5x5x"],
        ["-p", "999999x1"], ["-q", "1"],
    ],
    ids="".join,
)  # fmt: skip
def test_flags_that_mean_nothing_are_refused(flags: list[str]) -> None:
    done = run_here("model", *flags)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr


def test_seeds_have_64_bits(tmp_path: Path) -> None:
    case = next(case for case in map(random_case, range(20)) if case.settings)
    prompt, alone = speak(case.portable)
    file = alone.export(tmp_path)
    for seed in (-(2**63), 2**53 + 1, 2**63 - 1):
        (drawn,) = replace(alone, settings={"seed": seed}).draw(file)
        done = run_here(str(file), "-n", str(alone.count), *prompt, "-s", str(seed))
        assert done.stdout == written(alone, drawn)


@pytest.mark.parametrize("pixels", ["1x1", "200x200"])
def test_places_that_cannot_be_written_are_named(tmp_path: Path, pixels: str) -> None:
    model = AutoregressiveTransformer(TransformerConfig(1, 1, 1, 1), 3, positions="none")
    export_decoder(model, tmp_path / "m")
    missing = tmp_path / "none" / "picture"
    done = run_here(str(tmp_path / "m"), "-p", pixels, "-o", str(missing))
    assert done.returncode == 1 and f"linattn-run: {missing}: expected" in done.stderr
    if Path("/dev/full").exists():
        done = run_here(str(tmp_path / "m"), "-p", pixels, "-o", "/dev/full")
        assert done.returncode == 1 and "linattn-run: /dev/full: expected" in done.stderr


def run_here(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = FILE.parent.parent / "bin" / "linattn-run"
    if not command.is_file():
        pytest.skip("linattn-run is not installed")
    return subprocess.run([command, *arguments], capture_output=True, check=False, text=True)


@pytest.mark.slow
def test_tokens_on_arm(tmp_path: Path) -> None:
    command = tmp_path / "linattn-run"
    compile_for("aarch64", command)
    assert int.from_bytes(command.read_bytes()[MACHINE_AT : MACHINE_AT + 2], "little") == ARM
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("it compiles, but does not run: qemu-aarch64 is not installed")
    check_tokens([Path(emulator), command], tmp_path, range(48))


def check_tokens(command: list[Path], folder: Path, numbers: range) -> None:
    for case in map(random_case, numbers):
        if not case.settings:
            continue
        prompt, alone = speak(case.portable)
        file = alone.export(folder)
        settings = [
            str(x) for name in alone.settings for x in (OPTIONS[name], alone.settings[name])
        ]
        done = subprocess.run(
            [*command, file, "-n", str(alone.count), *prompt, *settings],
            capture_output=True, check=True, text=True,
        )  # fmt: skip
        (drawn,) = alone.draw(file)
        assert done.stdout == written(alone, drawn), case


def speak(case: Case) -> tuple[list[str], Case]:
    """The options of a prompt, and the first row of a case; only characters make a prompt."""
    head = case.model.head
    case = replace(case, prefix=case.prefix[:1], stops=())
    if head.kind != "categorical":
        return [], replace(case, prefix=case.prefix[:, :0])
    case.model.tokenizer = CharacterTokenizer("".join(map(chr, range(0xE0, 0xE0 + head.levels))))
    return ["-i", case.model.decode(case.prefix[0])], case


def written(case: Case, drawn: list[int]) -> str:
    if case.model.tokenizer is None:
        return "".join(f"{value} " for value in drawn)
    text: str = case.model.decode([*case.prompt, *drawn])
    return text
