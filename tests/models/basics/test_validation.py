"""Integers are taken as torch takes them: of Python, of NumPy, and in tensors; never booleans."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linattn_models import (
    Categorical,
    Lsh,
    MixtureOfLogistics,
    TransformerConfig,
)
from linattn_models.basics.validation import at_least, instance
from linattn_models.ctc import CTCBiLSTMConfig, CTCTransformerConfig

KINDS = (int, np.int64, np.uint8, torch.tensor)
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
NO_INTEGERS = (
    *(True, np.True_, torch.tensor(True)),
    *(2.0, np.float32(2), torch.tensor(2.0), "2", None, [2], np.array([2, 2]), torch.ones(2).int()),
)


@given(st.sampled_from((*KINDS, np.array)), st.integers(0, 255), st.integers(0, 255))
def test_an_integer_becomes_an_int_or_is_too_small(
    kind: Callable[[int], object], value: int, lowest: int
) -> None:
    if value < lowest:
        with pytest.raises(ValueError, match=f"x: expected an integer of at least {lowest}, got "):
            at_least("x", kind(value), lowest)
    else:
        number = at_least("x", kind(value), lowest)
        assert (type(number), number) == (int, value)


@pytest.mark.parametrize("value", NO_INTEGERS, ids=repr)
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="x: expected an integer of at least 1, got "):
        at_least("x", value, 1)


def test_classes_are_named_with_their_article() -> None:
    with pytest.raises(TypeError, match="x: expected an Iterable or a Tensor, got an int"):
        instance("x", 1, Iterable, torch.Tensor)


CONFIGS: list[tuple[Any, dict[str, int]]] = [
    (TransformerConfig, {"num_layers": 2, "num_heads": 4, "head_dim": 8, "ffn_dim": 16,
                         "num_kv_heads": 2, "causal_block": 3}),
    (Lsh, {"rounds": 2, "buckets": 8, "chunk": 4}),
    (Categorical, {"vocabulary": 7}),
    (MixtureOfLogistics, {"num_mixtures": 2, "channels": 3, "levels": 16}),
    (CTCBiLSTMConfig, {"num_phones": 5, "num_features": 8, "num_layers": 2, "hidden_dim": 4,
                       "subsampling": 4, "channels": 2}),
    (CTCTransformerConfig, {"num_phones": 5, "num_features": 8, "subsampling": 4, "channels": 2,
                            "depthwise_kernel": 3}),
]  # fmt: skip


@kinds
@pytest.mark.parametrize(("config", "sizes"), CONFIGS, ids=[kind.__name__ for kind, _ in CONFIGS])
def test_a_configuration_holds_ints(config: Any, sizes: dict[str, int], kind: Any) -> None:
    made = config(**{name: kind(size) for name, size in sizes.items()})
    assert made == config(**sizes)
    for name, size in sizes.items():
        assert (type(getattr(made, name)), getattr(made, name)) == (int, size)
    if hasattr(made, "to_dict"):
        assert json.loads(json.dumps(made.to_dict())) == json.loads(
            json.dumps(config(**sizes).to_dict())
        )
