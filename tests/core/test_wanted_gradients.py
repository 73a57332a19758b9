"""The non-causal backward pass in torch operations reads only the tensors of wanted gradients."""

from __future__ import annotations

from typing import NoReturn

import pytest
import torch

from linattn_core import linear_attention
from linattn_core.reference_backend.tiles import Problem


def refused(*arguments: object) -> NoReturn:
    raise AssertionError("these tensors are in no wanted gradient")


@pytest.mark.parametrize(
    ("wanted", "unread"), [("query", "keys"), ("query", "values"), ("value", "values")]
)
def test_tensors_of_unwanted_gradients_are_not_read(
    wanted: str, unread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {name: torch.randn(2, 3, 5, 4) for name in ("query", "key", "value")}

    def gradient(*names: str) -> torch.Tensor:
        leaves = {name: x.clone().requires_grad_(name in names) for name, x in tensors.items()}
        out = linear_attention(**leaves, backend="reference")
        if len(names) == 1:
            monkeypatch.setattr(Problem, unread, refused)
        return torch.autograd.grad(out.square().sum(), leaves[wanted])[0]

    among_all = gradient(*tensors)
    torch.testing.assert_close(gradient(wanted), among_all)
