"""Power laws of curves of training."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.fits import POWERS, PowerLaw, fit_power_law


@given(st.floats(0.0, 1.0), st.floats(0.1, 10.0), st.sampled_from(POWERS[::10].tolist()))
def test_a_power_law_is_found_and_goes_on(floor: float, scale: float, power: float) -> None:
    law = PowerLaw(floor, scale, power)
    found = fit_power_law([(x, law(x)) for x in np.geomspace(100, 10_000, 20)])

    assert found(1e6) == pytest.approx(law(1e6), rel=0.02)
    assert found.floor >= 0.0


@given(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=20))
def test_no_curve_goes_below_zero(values: list[float]) -> None:
    assert fit_power_law([(100.0 * n, y) for n, y in enumerate(values, 1)]).floor >= 0.0
