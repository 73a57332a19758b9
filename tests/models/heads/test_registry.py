"""Heads are written to configurations and read back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linattn_models import Categorical, Head, MixtureOfLogistics, head_from_dict

heads = st.builds(Categorical, st.integers(2, 999)) | st.builds(
    MixtureOfLogistics, st.integers(1, 20), st.sampled_from([1, 3]), st.integers(2, 256)
)


@given(heads)
def test_round_trips(head: Head) -> None:
    assert head_from_dict(json.loads(json.dumps(head.to_dict()))) == head


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ([], "kind"),
        ({"vocabulary": 3}, "kind"),
        ({"kind": "categoric", "vocabulary": 3}, "categoric"),
        ({"kind": "categorical"}, "vocabulary"),
        ({"kind": "categorical", "vocabulary": 3, "levels": 3}, "levels"),
        ({"kind": "categorical", "vocabulary": "3"}, "vocabulary"),
    ],
)
def test_what_describes_no_head_is_refused(values: Any, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        head_from_dict(values)
