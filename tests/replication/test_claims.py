"""The registry of claims, and the rules that judge them."""

from __future__ import annotations

import math
from statistics import quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cases import CASES
from benchmarks.document import Results
from linattn_lab.seeds import error_name
from linattn_lab.store import read_records, record_file
from replication.claims import (
    CLAIMS,
    CONFIRMED,
    FEW_UPDATES,
    IN_DIRECTION,
    MARGINS,
    NOT_CONFIRMED,
    NOT_TESTED,
    WORST_FIRST,
    Claim,
    make_rule,
    select_claims,
)
from replication.experiments import EXPERIMENTS
from replication.published import RESULTS

BY_NAME = {claim.name: claim for claim in CLAIMS}
POSITIVE = st.floats(1e-6, 1e6)


def test_each_claim_has_a_name_of_its_own_and_experiments() -> None:
    assert len(BY_NAME) == len(CLAIMS)
    assert {name for claim in CLAIMS for name in claim.experiments} <= EXPERIMENTS.keys()


@given(st.sampled_from(sorted(MARGINS)), POSITIVE, POSITIVE, POSITIVE, st.booleans())
def test_a_papers_ratio_is_confirmed_within_a_factor_and_its_side_beyond_noise(
    kind: str, first: float, second: float, ours: float, same_scale: bool
) -> None:
    rule = make_rule(kind, "a", "b", str(first), str(second))
    tolerance, noise = MARGINS[kind]
    paper = first / second

    verdict = rule.judge({"a": ours, "b": 1.0}, same_scale=same_scale)

    if same_scale and tolerance * 0.999 > ours / paper > 1.001 / tolerance:
        assert verdict == CONFIRMED
    if verdict == IN_DIRECTION and paper != 1:
        assert math.log(ours) * math.log(paper) > 0
        assert max(ours, 1 / ours) >= noise * 0.999
    if verdict == CONFIRMED:
        assert same_scale


def with_errors(first: float, second: float, *errors: float | None) -> dict[str, float]:
    """Two figures, with the errors of those of several seeds."""
    known = {error_name(x): error for x, error in zip("ab", errors, strict=True)}
    return {"a": first, "b": second} | {x: e for x, e in known.items() if e is not None}


ORDERED = [
    ("bits", "2", "1"), ("bits", "1", "2"), ("errors", "2", "1"), ("errors", "1", "2"),
    ("more", "1.05", ""), ("no more", "0.01", ""),
]  # fmt: skip
ERRORS = st.floats(0, 1e6)


@given(st.sampled_from(ORDERED), POSITIVE, POSITIVE, st.tuples(ERRORS, ERRORS))
def test_the_spread_of_several_seeds_decides_the_side(
    words: tuple[str, str, str], first: float, second: float, errors: tuple[float, float]
) -> None:
    kind, *numbers = words
    rule = make_rule(kind, "a", "b", *numbers)

    verdict = rule.judge(with_errors(first, second, *errors), same_scale=False)

    noise = abs(first - second) <= math.hypot(*errors)
    claimed = "less" if numbers == ["1", "2"] else "more"
    side = "less" if first < second else "more"
    holds = (noise or side == "less") if kind == "no more" else (not noise and side == claimed)
    assert verdict == (IN_DIRECTION if holds else NOT_CONFIRMED)


@given(st.sampled_from(ORDERED), POSITIVE, POSITIVE, ERRORS, st.booleans(), st.booleans())
def test_one_seed_is_judged_by_a_margin_whatever_the_spread_of_the_other(
    words: tuple[str, str, str],
    first: float,
    second: float,
    error: float,
    of_first: bool,
    same_scale: bool,
) -> None:
    rule = make_rule(words[0], "a", "b", *words[1:])
    some = with_errors(first, second, *((error, None) if of_first else (None, error)))

    verdict = rule.judge(some, same_scale=same_scale)

    assert verdict == rule.judge({"a": first, "b": second}, same_scale=same_scale)
    assert rule.judge_spread(some) == "one seed"


@given(st.sampled_from([x for x in CLAIMS if x.rules[0].order in ("more", "no more")]), st.data())
def test_without_spread_a_statement_of_order_has_its_margin(
    claim: Claim, data: st.DataObject
) -> None:
    for rule in (x for x in claim.rules if x.order in ("more", "no more") and x.paper is None):
        first, second = data.draw(POSITIVE), data.draw(POSITIVE)
        verdict = rule.judge({rule.figure: first, rule.over: second}, same_scale=True)
        more = rule.order == "more"
        holds = first / second >= rule.low if more else first - second <= rule.high
        assert verdict == (CONFIRMED if holds else NOT_CONFIRMED)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_ratio_of_faulty_figures_confirms_nothing(value: float) -> None:
    rule = make_rule("speed", "a", "b", "2", "1")

    assert rule.judge({"a": 2.0, "b": value}, same_scale=True) == NOT_CONFIRMED
    assert rule.judge({"a": value, "b": 1.0}, same_scale=True) == NOT_CONFIRMED


def test_without_a_figure_nothing_is_judged() -> None:
    assert make_rule("speed", "a", "b", "2", "1").judge({"a": 2.0}, same_scale=True) == NOT_TESTED
    assert all(claim.judge({}, "paper", "cuda") == NOT_TESTED for claim in CLAIMS)


@given(st.data())
def test_a_claim_is_as_good_as_its_worst_rule(data: st.DataObject) -> None:
    claim = data.draw(st.sampled_from(CLAIMS))
    names = {name for rule in claim.rules for name in rule.figures}
    figures = {name: data.draw(POSITIVE) for name in sorted(names)}

    verdict = claim.judge(figures, "paper", "cuda")

    verdicts = [rule.judge(figures, same_scale=True) for rule in claim.rules]
    assert WORST_FIRST.index(verdict) == min(map(WORST_FIRST.index, verdicts))


@pytest.mark.parametrize(
    ("name", "paper"),
    [
        ("section4.2/better-per-hour",
         {"linear": 3.40, "softmax": 3.47, "lsh-1": 3.39, "lsh-4": 3.51}),
        ("section4.3/fewer-errors", {"linear": 8.08, "lstm": 10.94, "lsh-4": 9.33}),
        ("section4.3/faster-epochs", {"linear": 824.0, "lstm": 1_047.0, "lsh-4": 2_250.0}),
    ],
)  # fmt: skip
def test_statements_hold_for_the_papers_own_tables(name: str, paper: dict[str, float]) -> None:
    claim = BY_NAME[name]
    end = claim.rules[0].figure.split("/")[1]
    figures = {f"{method}/{end}": value for method, value in paper.items()}

    assert claim.judge(figures, "paper", "cuda") == CONFIRMED
    assert claim.judge(dict.fromkeys(figures, 1.0), "paper", "cuda") == NOT_CONFIRMED


@pytest.mark.parametrize(
    ("name", "other_scale", "same_scale"),
    [
        ("section4.2/300x", ("laptop", "cpu"), ("laptop", "cuda")),
        ("table1/softmax/bits-per-dim", ("laptop", "cuda"), ("paper", "cpu")),
        ("table5/mnist/softmax/cpu", ("smoke", "cpu"), ("laptop", "cpu")),
    ],
)
def test_another_scale_confirms_a_direction_at_best(
    name: str, other_scale: tuple[str, str], same_scale: tuple[str, str]
) -> None:
    rule = BY_NAME[name].rules[0]
    assert rule.paper is not None
    figures = {rule.figure: rule.paper, rule.over: 1.0}

    assert BY_NAME[name].judge(figures, *other_scale) == IN_DIRECTION
    assert BY_NAME[name].judge(figures, *same_scale) == CONFIRMED


@pytest.mark.parametrize(
    ("name", "counted"),
    [("table1/lsh-1/bits-per-dim", "updates"), ("figure4/linear/samples", "updates-drawn")],
)
def test_a_few_updates_test_nothing(name: str, counted: str) -> None:
    claim = BY_NAME[name]
    rule, method = claim.rules[0], claim.rules[0].figure.split("/")[0]
    figures = {each: 0.5 * rule.high if each == rule.figure else 0.5 for each in rule.figures}
    many, few = ({f"{method}/{counted}": count} for count in (FEW_UPDATES, FEW_UPDATES - 1))

    assert claim.judge(figures | many, "laptop", "cpu") == IN_DIRECTION
    assert claim.judge(figures | few, "laptop", "cpu") == NOT_TESTED


@pytest.mark.parametrize(
    ("name", "near"),
    [("tabel5", "table5"), ("table5/mnist/linear/cpi", "table5/mnist/linear/cpu")],
)
def test_an_unknown_claim_is_refused_with_near_names(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"'{near}'"):
        select_claims(["table1", name])


def test_the_margin_of_speeds_is_what_rounds_on_cpus_show() -> None:
    halves = [
        (ratio.value.high - ratio.value.low) / 2 / ratio.value.median
        for theme in {case.theme for case in CASES}
        for record in read_records(record_file(RESULTS, theme, "cpu"), Results)
        for result in record.results.values()
        for ratio in result.ratios
    ]
    assert quantiles(halves, n=10)[-1] <= MARGINS["speed"][1] - 1
