"""What breaks without each private name of torch, and that nothing else takes one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad

import linattn_core
from linattn_core import LinearAttentionState, linear_attention
from linattn_core.torch_private import in_forward_mode, outside_every_mode

PRIVATE = re.compile(r"\b(torch(\.\w+)*|pytree|forward_ad)\._(?!_)|from torch.* import _")


def test_private_names_stand_in_one_module() -> None:
    folder = Path(linattn_core.__file__).parent
    modules = {x.name for x in folder.rglob("*.py") if PRIVATE.search(x.read_text("utf-8"))}
    assert modules == {"torch_private.py"}


def test_an_exported_state_is_saved_under_its_registered_name(tmp_path: Path) -> None:
    """Without register_namedtuple, torch.export.save refuses the program."""

    class Double(torch.nn.Module):
        def forward(self, state: LinearAttentionState) -> LinearAttentionState:
            return LinearAttentionState(2 * state.s, 2 * state.z)

    state = LinearAttentionState(torch.ones(1, 1, 2, 3), torch.ones(1, 1, 2))
    torch.export.save(torch.export.export(Double(), (state,)), tmp_path / "double.pt2")
    loaded = torch.export.load(tmp_path / "double.pt2").module()(state)
    assert torch.equal(loaded.s, 2 * state.s)


def test_forward_mode_is_noticed() -> None:
    """Without in_forward_mode, a jvp would pass through the operators as zeros."""
    assert not in_forward_mode()
    with forward_ad.dual_level():
        assert in_forward_mode()
        x = forward_ad.make_dual(torch.ones(1, 1, 2, 3), torch.ones(1, 1, 2, 3))
        with pytest.raises(NotImplementedError, match="reverse mode only"):
            linear_attention(x, x, x)


def test_a_value_made_outside_every_mode_outlives_them() -> None:
    """Without it, a tensor made under inference mode can never be saved for a backward pass."""
    with torch.inference_mode(), torch.device("meta"):
        x = outside_every_mode(lambda: torch.ones(2))
    assert not x.is_inference()
    assert x.device.type == "cpu"


def test_what_fails_outside_every_mode_fails_here() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        outside_every_mode(fail)
