"""Measurements by different kernels are kept apart, and none is made by an outdated build."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from benchmarks.measure.machine import INSTRUCTIONS
from replication.machine import key, require_current_builds, this_machine


@pytest.mark.parametrize("flag", INSTRUCTIONS)
def test_a_machine_without_an_instruction_set_is_another_machine(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = set()
    for present in (False, True):
        has = {flag: present}
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda has=has: has)
        machine = this_machine()
        assert (INSTRUCTIONS[flag] in machine.hardware) is present
        keys.add(key(machine))
    assert len(keys) == 2


def test_a_build_older_than_its_sources_is_refused(tmp_path: Path) -> None:
    built = Path(pytest.importorskip("linattn_cpu._native").__file__).stat().st_mtime
    for folder in ("packages/linattn-cpu/native", "packages/linattn-cuda/native",
                   "packages/linattn-core/native", "kernels-cuda"):  # fmt: skip
        source = tmp_path / folder / "a.cpp"
        source.parent.mkdir(parents=True)
        source.touch()
        os.utime(source, (0, 0))
    require_current_builds(tmp_path)
    source = tmp_path / "packages" / "linattn-cpu" / "native" / "a.cpp"
    os.utime(source, (built + 10, built + 10))
    message = (
        r"linattn-cpu: expected a build of these sources, got an older one; install it again\."
    )
    with pytest.raises(RuntimeError, match=message):
        require_current_builds(tmp_path)
