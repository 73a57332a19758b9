"""What language models cost: each method is right, and counts tokens."""

from __future__ import annotations

import pytest

from benchmarks.cases.costs import PARAMETERS, ROWS, STATE, setup
from benchmarks.cases.models import QUICK_BATCH
from tests.benchmarks.helpers import QUICK, make_or_skip


@pytest.mark.parametrize("name", ROWS)
def test_a_method_is_right_and_counts_tokens_of_all_sequences(name: str) -> None:
    made = make_or_skip(setup("small", QUICK)[name])
    assert made.check() is None
    made.run()
    rows = min(ROWS[name], QUICK_BATCH)
    assert made.units >= rows and made.units % rows == 0
    assert made.figures[PARAMETERS] > 0 and made.figures[STATE] > 0
