"""The mean of checkpoints is that of each weight; what does not fit is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from linattn_models.training import RunFolder, average_weights
from linattn_models.training.checkpoint import read_checkpoint
from tests.training.toy import toy_model


def test_the_mean_of_the_last_checkpoints(unbroken: Path) -> None:
    folders = RunFolder(unbroken).checkpoints()
    weights = [read_checkpoint(folder).weights for folder in folders]
    assert len(weights) == 2
    model, averaged = toy_model(), average_weights(folders)
    model.load_state_dict(averaged)
    for name, x in averaged.items():
        torch.testing.assert_close(x, torch.stack([w[name] for w in weights]).mean(0))
        assert x.dtype == weights[0][name].dtype
    assert any(not torch.equal(x, weights[1][name]) for name, x in averaged.items())


def test_sums_are_precise_and_counters_are_those_of_the_last() -> None:
    def state(weight: float, count: int) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor([weight], dtype=torch.bfloat16), "seen": torch.tensor(count)}

    averaged = average_weights(state(256.0 + 2 * (n % 2), n) for n in range(100))
    assert averaged["x"].dtype == torch.bfloat16
    assert averaged["x"].item() == torch.tensor(257.0).bfloat16().item()
    assert averaged["seen"].item() == 99


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="sources"):
        average_weights([])
    ones = {"x": torch.ones(2)}
    with pytest.raises(ValueError, match="source 2, tensor 'x'"):
        average_weights([ones, {"x": torch.ones(3)}])
    with pytest.raises(ValueError, match="source 2, tensor 'y'"):
        average_weights([ones, {**ones, "y": torch.ones(2)}])
    with pytest.raises(ValueError, match="source 2, tensor 'x'"):
        average_weights([{}, ones])


def test_a_path_that_is_no_checkpoint_is_not_called_damaged(unbroken: Path) -> None:
    with pytest.raises(ValueError, match="expected a checkpoint's folder"):
        average_weights([unbroken])
    for alone in (str(unbroken), unbroken, {"x": torch.ones(2)}):
        with pytest.raises(TypeError, match="sources"):
            average_weights(alone)  # type: ignore[arg-type]
