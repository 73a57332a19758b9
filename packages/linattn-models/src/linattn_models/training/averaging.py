"""The mean of several checkpoints' weights, which often generalizes better than the last alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.training.checkpoint import FILES, read_checkpoint, require_like


def average_weights(sources: Iterable[str | Path | Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each weight, computed in float64, in the dtype of the weights.

    Integer tensors are taken from the last source. `model.load_state_dict` takes the result:

        model.load_state_dict(average_weights(RunFolder(path).checkpoints()[-5:]))

    Args:
        sources: checkpoint folders, or state dicts.

    Raises:
        ValueError: no source, a folder that is no checkpoint, a damaged one, or one of other
            names, shapes or dtypes.
        TypeError: one source alone, not in a list.

    Cost: reads one source at a time; memory for two sources' weights and for the sums in float64.
    """
    sums: dict[str, Tensor] = {}
    first: Mapping[str, Tensor] = {}
    weights: Mapping[str, Tensor] = {}  # after the loop those of the last source
    if isinstance(sources, str | Path | Mapping):
        got = f"a {type(sources).__name__}"
        raise TypeError(expected("sources", "a list of checkpoints or state dicts", got))
    count = 0
    for count, source in enumerate(sources, start=1):
        if isinstance(source, Mapping):
            weights, name_of_source = source, f"source {count}"
        else:
            weights, name_of_source = _read_weights(Path(source)), str(source)
        if count == 1:
            first = weights
        require_like(weights, first, name_of_source)
        for name, x in weights.items():
            if x.is_floating_point() or x.is_complex():
                wide = torch.complex128 if x.is_complex() else torch.float64
                sums[name] = sums.get(name, 0.0) + x.detach().to(wide)
    if not count:
        raise ValueError(expected("sources", "at least one checkpoint", "none"))
    return {
        name: (sums[name] / count).to(x.dtype) if name in sums else x.detach().clone()
        for name, x in weights.items()
    }


def _read_weights(folder: Path) -> dict[str, Tensor]:
    if not any((folder / name).is_file() for name in FILES):
        advice = "pass RunFolder(path).checkpoints() or some of them"
        raise ValueError(expected(str(folder), "a checkpoint's folder", "none", advice))
    return read_checkpoint(folder).weights
