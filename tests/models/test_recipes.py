"""Recipes: the adapters, where other libraries are. The site runs the cells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

GUIDE = (Path(__file__).parents[2] / "docs/recipes.md").read_text()


def run_block(library: str) -> Any:
    """The model of the block that imports a library."""
    pytest.importorskip(library)
    blocks = re.findall(r"^```\{code-block\} python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if re.search(rf"(import|from) {library}\b", block)]
    names: dict[str, Any] = {}
    exec(block, names)
    return names["model"]


def test_timm() -> None:
    model = run_block("timm")
    model(torch.randn(1, 3, 224, 224)).sum().backward()
    assert all(x.grad is not None for x in model.parameters())


def test_x_transformers() -> None:
    model = run_block("x_transformers").eval()
    tokens = torch.randint(256, (2, 20))
    changed = tokens.clone()
    changed[:, 12:] = 0
    mask = torch.arange(20) < torch.tensor([[20], [15]])
    with torch.no_grad():
        before, after, padded = model(tokens), model(changed), model(tokens, mask=mask)
    torch.testing.assert_close(before[:, :12], after[:, :12])
    torch.testing.assert_close(padded[1, :15], before[1, :15])
