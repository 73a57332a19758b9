"""What cannot be carried out on the processes at hand is refused before anything is written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType

from linattn_models.training import environment as environment_module
from linattn_models.training.environment import deterministic_kernels, make_accelerator
from tests.training.toy import toy_config, toy_run


def pretend(monkeypatch: pytest.MonkeyPatch, processes: int, kind: DistributedType) -> None:
    accelerator = SimpleNamespace(
        num_processes=processes, distributed_type=kind, device=torch.device("cpu")
    )
    monkeypatch.setattr(environment_module, "Accelerator", lambda **settings: accelerator)


def test_a_batch_that_the_processes_cannot_share(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, 3, DistributedType.MULTI_CPU)
    make_accelerator(toy_config(batch_size=6))
    with pytest.raises(ValueError, match="expected a multiple of the 3 processes .*, got 4"):
        toy_run(out, batch_size=4)
    assert not out.exists()


def test_ways_to_share_a_model_that_checkpoints_do_not_know(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, 2, DistributedType.FSDP)
    with pytest.raises(ValueError, match="got accelerate set up for FSDP"):
        toy_run(out)
    assert not out.exists()


@pytest.mark.parametrize("before", [False, True])
def test_deterministic_kernels_are_asked_for_while_training_on_cuda(before: bool) -> None:
    torch.use_deterministic_algorithms(before)
    try:
        with deterministic_kernels(torch.device("cuda")):
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled() is not before
        assert torch.are_deterministic_algorithms_enabled() is before
        with deterministic_kernels(torch.device("cpu")):
            assert torch.are_deterministic_algorithms_enabled() is before
    finally:
        torch.use_deterministic_algorithms(False)
