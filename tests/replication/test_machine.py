"""Measurements of machines that run different kernels are kept apart."""

from __future__ import annotations

import pytest
import torch

from replication.machine import INSTRUCTIONS, key, this_machine


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
