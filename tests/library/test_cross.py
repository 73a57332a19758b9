"""Compiling for another machine: its file is whole or the older one."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests.library.linattn_library import CROSS


@pytest.mark.parametrize("target", ["wasm", "aarch64"])
def test_an_interrupted_compilation_leaves_the_older_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    spec = importlib.util.spec_from_file_location("cross", CROSS)
    assert spec is not None and spec.loader is not None
    cross = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cross)
    interrupts = False

    def compile_half(*arguments: str) -> None:
        file = Path(arguments[arguments.index("-o") + 1])
        file.write_text("half")
        if interrupts:
            raise KeyboardInterrupt
        file.write_text("whole")

    monkeypatch.setattr(cross, "_zig", compile_half)
    file = tmp_path / "compiled"
    cross.compile_for(target, file)
    os.utime(file, (0, 0))
    interrupts = True
    with pytest.raises(KeyboardInterrupt):
        cross.compile_for(target, file)
    assert file.read_text() == "whole" and list(tmp_path.iterdir()) == [file]
