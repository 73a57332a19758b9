"""The curve of bits per dimension: it finds the law that made the points, and says how surely."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.report.curve import EXPONENTS, FEWEST, fit, runs, value

SEEN = [1_000.0 * 2**k for k in range(12)]


@given(a=st.floats(0.0, 1.0), b=st.floats(0.5, 10.0), c=st.sampled_from(EXPONENTS[4:40]))
def test_points_of_a_curve_give_it_back(a: float, b: float, c: float) -> None:
    curve = fit([(n, value((a, b, c), n)) for n in SEEN])

    ahead = 100 * SEEN[-1]
    assert curve.at(ahead) == pytest.approx(value((a, b, c), ahead), rel=1e-3, abs=1e-3)


@given(st.lists(st.floats(0.1, 3.0), min_size=len(SEEN), max_size=len(SEEN)))
def test_the_best_curve_lies_within_the_range_and_never_rises(bits: list[float]) -> None:
    curve = fit(list(zip(SEEN, bits, strict=True)))

    for n in (SEEN[0], 100 * SEEN[-1]):
        least, most = curve.between(n)
        assert 0 <= least <= curve.at(n) <= most
    assert curve.at(100 * SEEN[-1]) <= curve.at(SEEN[0]) + 1e-12


def test_noise_widens_the_range() -> None:
    law, ahead = (0.5, 5.0, 0.3), 100 * SEEN[-1]
    noisy = [(n, value(law, n) + 0.03 * (-1) ** k) for k, n in enumerate(SEEN)]

    ranges = [fit(at).between(ahead) for at in ([(n, value(law, n)) for n in SEEN], noisy)]

    exact, wide = (most - least for least, most in ranges)
    assert wide > exact


@pytest.mark.parametrize("validations", [1, FEWEST])
def test_training_batches_stand_in_for_few_validations(tmp_path: Path, validations: int) -> None:
    folder = tmp_path / "linear"
    folder.mkdir()
    steps = [100 * (k + 1) for k in range(FEWEST)]
    rows = [{"step": step, "split": "train", "loss": math.log(2)} for step in [10, *steps]]
    rows += [{"step": n, "split": "eval", "bits_per_dim": 2.0} for n in steps[-validations:]]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "config.json").write_text('{"training": {"batch_size": 8}}')
    (folder / "summary.json").write_text('{"steps": 500, "train_seconds": 40.0}')

    (run,) = runs({"linear": folder})

    assert (run.name, run.images, run.validated) == ("linear", 4_000, validations == FEWEST)
    assert [n for n, _ in run.points] == [8.0 * step for step in steps]
    assert run.points[-1][1] == pytest.approx(2.0 if run.validated else 1.0)


def test_the_curve_of_a_trapezoid_is_through_the_points_at_its_constant_rate(
    tmp_path: Path,
) -> None:
    steps = [100 * (k + 1) for k in range(10)]
    rows = [{"step": n, "split": "train", "loss": 1.0, "learning_rate": min(1.0, (1_000 - n) / 200)}
            for n in steps]  # fmt: skip
    rows += [{"step": n, "split": "eval", "bits_per_dim": 1.0 if n <= 800 else 0.5} for n in steps]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "config.json").write_text(
        '{"training": {"batch_size": 8, "schedule": "trapezoid"}}'
    )
    (tmp_path / "summary.json").write_text('{"steps": 1000, "train_seconds": 40.0}')

    (run,) = runs({"linear": tmp_path})

    assert [n for n, _ in run.points] == [8 * n for n in steps]
    assert run.curve is not None
    assert run.curve.at(1e6) == pytest.approx(1.0)
