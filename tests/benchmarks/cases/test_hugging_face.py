"""Tokens through transformers are timed only if they are the most probable ones."""

from __future__ import annotations

import pytest

from benchmarks.case import Method
from benchmarks.cases import find_case, hugging_face
from tests.benchmarks.helpers import QUICK

NAMES = [
    f"{name}, {part}"
    for name in (hugging_face.OURS, hugging_face.LINEAR, hugging_face.GPT2)
    for part in (hugging_face.FIRST, hugging_face.LAST)
]


def make(name: str) -> Method:
    if not name.startswith(hugging_face.LINEAR):
        pytest.importorskip("transformers", reason="needs the extra [transformers]")
    return find_case("generation/hugging-face/4000-tokens").setup(QUICK)[name]()


@pytest.mark.parametrize("name", NAMES)
def test_tokens_pass_their_check_however_often_they_are_generated(name: str) -> None:
    method = make(name)
    assert method.measure is not None
    assert method.units == 5
    for _ in range(3):  # a cache that one call leaves behind would have no room for the others
        assert method.check() is None
        assert method.measure() > 0
