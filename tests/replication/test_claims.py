"""The registry of claims, and the rule that judges them."""

from __future__ import annotations

import pytest

from replication.claims import (
    BY_NAME,
    CLAIMS,
    CONFIRMED,
    IN_DIRECTION,
    NOT_CONFIRMED,
    NOT_RUN,
    Claim,
    Rule,
    chosen,
    rule,
)
from replication.experiments import EXPERIMENTS

PLACES = {
    "abstract", "section3.2", "section3.3", "section3.4", "section4.2", "section4.3",
    "figure1", "figure2", "figure3", "figure4", "figure6", "figure7", "figure8", "figure9",
    "table1", "table2", "table3", "table4", "table5", "supplementC",
}  # fmt: skip


def test_each_claim_has_a_name_of_its_own_and_an_experiment() -> None:
    names = [claim.name for claim in CLAIMS]

    assert len(set(names)) == len(names)
    assert {name for claim in CLAIMS for name in claim.experiments} <= EXPERIMENTS.keys()


def test_every_place_of_the_paper_is_there() -> None:
    assert {claim.name.split("/")[0] for claim in CLAIMS} == PLACES


def number(name: str) -> float:
    value = BY_NAME[name].rule.number
    assert value is not None
    return value


def test_the_tables_ratios_are_those_that_the_paper_prints() -> None:
    def gain(shape: str, method: str) -> float:
        ours, softmax = (f"table4/{shape}/{x}/images-per-second" for x in (method, "softmax"))
        return number(ours) / number(softmax)

    def alone(method: str, device: str) -> float:
        one = "table5/cifar10/{}/{}".format
        return number(one(method, device)) / number(one("linear", device))

    assert round(gain("mnist", "linear")) == 317
    assert int(gain("cifar10", "linear")) == 4_462
    assert round(gain("mnist", "stateful-softmax"), 1) == 16.8
    assert round(gain("cifar10", "stateful-softmax")) == 80
    assert round(alone("softmax", "cpu"), 1) == 191.8
    assert round(alone("lsh-4", "cpu"), 1) == 116.7
    assert round(alone("softmax", "gpu"), 1) == 4.9


def test_every_number_is_in_the_words_of_its_claim() -> None:
    numbers = {c.name: c.rule.number for c in CLAIMS if c.rule.number is not None}
    told = {name: BY_NAME[name].says + BY_NAME[name].note for name in numbers}
    absent = [
        name
        for name, value in numbers.items()
        if f"{value:g}" not in told[name].replace(",", "") and f"{value}" not in told[name]
    ]

    assert numbers
    assert absent == []


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (317.0, CONFIRMED),
        (260.0, CONFIRMED),  # within a factor of 1.25
        (390.0, CONFIRMED),
        (900.0, IN_DIRECTION),  # far beyond it, on the side that is claimed
        (200.0, IN_DIRECTION),
        (1.04, NOT_CONFIRMED),  # noise
        (0.5, NOT_CONFIRMED),
    ],
)
def test_a_ratio_above_one(ours: float, verdict: str) -> None:
    speed = rule("speed", "a", "b", "317", "1")

    assert speed.judge({"a": ours, "b": 1.0}, same_scale=True) == verdict


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(0.6, CONFIRMED), (0.2, IN_DIRECTION), (0.9, IN_DIRECTION), (0.98, NOT_CONFIRMED)],
)
def test_a_ratio_below_one(ours: float, verdict: str) -> None:
    speed = rule("speed", "a", "b", "0.6", "1")

    assert speed.judge({"a": ours, "b": 1.0}, same_scale=True) == verdict


@pytest.mark.parametrize("first", [1.324, 1.341])
@pytest.mark.parametrize("words", [("0.621", "0.644"), ("3.47", "3.4")])
def test_runs_of_one_model_are_neither_better_nor_worse(
    first: float, words: tuple[str, str]
) -> None:
    bits = rule("bits", "a", "b", *words)
    figures = {"a": first, "b": 1.324 + 1.341 - first}  # bits-mnist, softmax, run twice

    assert bits.judge(figures, same_scale=False) == NOT_CONFIRMED


def test_bits_of_a_week_are_compared_after_equal_time() -> None:
    rows = [claim for claim in CLAIMS if claim.name.startswith("table2/") and "bits" in claim.name]
    ends = [figure.split("/")[1] for claim in rows for figure in claim.rule.figures]

    assert ends == ["bits-equal-time"] * 8
    (week,) = EXPERIMENTS["bits-cifar10"].commands("paper")[:1]
    assert "--seconds 604800" in week


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
    end = claim.rule.figure.split("/")[1]
    figures = {f"{method}/{end}": value for method, value in paper.items()}

    assert claim.judge(figures, "paper", "cuda") == CONFIRMED
    equal = dict.fromkeys(figures, 1.0)
    assert claim.judge(equal, "paper", "cuda") == NOT_CONFIRMED


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (3_999.0, IN_DIRECTION),  # no tolerance
        (4_000.0, CONFIRMED),
        (90_000.0, CONFIRMED),
        (1.01, NOT_CONFIRMED),
    ],
)
def test_more_than_is_judged_without_tolerance(ours: float, verdict: str) -> None:
    least = rule("least", "a", "b", "4000", "")

    assert least.judge({"a": ours, "b": 1.0}, same_scale=True) == verdict


def test_every_claim_of_more_than_has_no_tolerance() -> None:
    words = ("more than", "less than", "up to")
    rules = [c.rule for c in CLAIMS if any(w in c.says for w in words) and c.rule.figures[1:]]

    assert sorted(rule.low for rule in rules) == [3.0, 50.0, 300.0, 1_000.0, 4_000.0]
    assert all(rule.low == rule.paper for rule in rules)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_faulty_figure_confirms_nothing(value: float) -> None:
    speed, bound = rule("speed", "a", "b", "2", "1"), Rule("a", low=1.0)

    assert speed.judge({"a": 2.0, "b": value}, same_scale=True) == NOT_CONFIRMED
    assert speed.fault({"a": 2.0, "b": value}) == f"b is {value:g}"
    assert speed.judge({"a": value, "b": 1.0}, same_scale=True) == NOT_CONFIRMED
    assert bound.judge({"a": value}, same_scale=True) == NOT_CONFIRMED


def test_a_cpu_confirms_the_direction_of_a_gpus_row_at_best() -> None:
    claim = next(claim for claim in CLAIMS if claim.name == "section4.2/300x")
    best = "best/images-per-second"
    figures = {f"linear/{best}": 500.0, f"softmax/{best}": 1.0}

    assert claim.judge(figures, "laptop", "cpu") == IN_DIRECTION
    assert claim.judge(figures, "laptop", "cuda") == CONFIRMED


def test_speeds_are_those_of_steps_in_pytorch() -> None:
    claim = next(claim for claim in CLAIMS if claim.name == "supplementC/50x")
    best = "best/images-per-second"
    figures = {
        f"linear/{best}": 24.0, f"linear-compiled/{best}": 51.0, f"stateful-softmax/{best}": 1.0,
    }  # fmt: skip

    assert claim.judge(figures, "laptop", "cuda") == IN_DIRECTION
    assert claim.compiled(figures) == 51.0
    assert claim.compiled({f"linear/{best}": 1.0}) is None


def test_every_case_is_one_claim() -> None:
    claim = BY_NAME["supplementC/faster-on-cpu"]
    name = "{}/largest-cpu-over-gpu".format
    rivals = ("softmax", "stateful-softmax", "lsh-1", "lsh-4")
    figures = {name("linear"): 0.75, **{name(rival): 1.1 for rival in rivals}}

    assert claim.judge(figures, "laptop", "cuda") == CONFIRMED
    assert claim.judge(figures | {name("linear"): 1.2}, "laptop", "cuda") == NOT_CONFIRMED
    assert claim.judge(figures | {name("lsh-4"): 0.9}, "laptop", "cuda") == NOT_CONFIRMED
    assert claim.judge({name("linear"): 0.75}, "laptop", "cuda") == NOT_RUN


def test_another_scale_confirms_a_direction_at_best() -> None:
    speed = rule("speed", "a", "b", "2", "1")

    assert speed.judge({"a": 2.0, "b": 1.0}, same_scale=False) == IN_DIRECTION
    assert speed.judge({"a": 0.5, "b": 1.0}, same_scale=False) == NOT_CONFIRMED
    assert Rule("a", high=1.0).judge({"a": 0.5}, same_scale=False) == IN_DIRECTION


def test_without_a_figure_nothing_is_confirmed() -> None:
    assert rule("speed", "a", "b", "2", "1").judge({"a": 2.0}, same_scale=True) == NOT_RUN
    assert Rule("a", low=0.0).judge({}, same_scale=True) == NOT_RUN
    assert all(claim.judge({}, "paper", "cuda") == NOT_RUN for claim in CLAIMS)


@pytest.mark.parametrize(("value", "verdict"), [(0.9, CONFIRMED), (1.2, NOT_CONFIRMED)])
def test_a_figure_within_its_bounds_is_confirmed(value: float, verdict: str) -> None:
    claim = Claim("x/y", "x", "y", ("equations",), (Rule("a", 0.9, 1.1),))

    assert claim.judge({"a": value}, "laptop", "cpu") == verdict


def test_a_place_chooses_its_claims() -> None:
    assert {claim.name for claim in chosen(["table5/mnist", "abstract/4000x"])} == {
        "abstract/4000x",
        *(name for name in BY_NAME if name.startswith("table5/mnist/")),
    }
    assert chosen([]) == list(CLAIMS)
    assert "table1/linear/bits-per-dim" not in {claim.name for claim in chosen(["table2"])}


@pytest.mark.parametrize(
    ("name", "advice"),
    [("tabel5", "table5"), ("table5/mnist/linear/cpi", "table5/mnist/linear/cpu")],
)
def test_an_unknown_claim_is_refused_with_near_names(name: str, advice: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean.*'{advice}'"):
        chosen(["table1", name])
