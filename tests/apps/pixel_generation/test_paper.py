"""The paper's figures say what the paper says."""

from __future__ import annotations

import pytest

from pixels.paper import PAPER


def test_the_paper_s_factors() -> None:
    """The gains that the paper names beside its figures: 317 on MNIST, 4,462 on CIFAR-10."""
    for shape, gain in (("mnist", 317), ("cifar10", 4_462)):
        rows = {row.method: row.images_per_second for row in PAPER[shape]}
        assert rows["linear"] / rows["softmax"] == pytest.approx(gain, rel=2e-3)  # type: ignore[operator]
