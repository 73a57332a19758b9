"""The tables of a comparison: each cell is the number that its column names."""

from __future__ import annotations

from typing import Any

from speech.tables import comparison_table

TIMING = {"seconds": {"linear": 0.25, "lstm": 2.0}, "bytes": {"linear": 1.5e9}, "batches": 10}


def errors(rate: float, *kinds: float) -> dict[str, float]:
    """A rate, and the shares of substitutions, insertions and deletions."""
    names = ("substitutions", "insertions", "deletions")
    return {"phoneme_error_rate": rate, **dict(zip(names, kinds, strict=True))}


# As in results.json; the numbers of one run are all different.
LINEAR: dict[str, Any] = {
    "steps": 9_600,
    "parameters": 1_234_567,
    "metrics": {"phoneme_error_rate": 0.1875},
    "recognition": {
        "selected": "3-gram, weight 0.2, bonus 0",
        "dev": {
            "greedy": errors(0.3, 0.1, 0.11, 0.09),
            "selected": errors(0.26, 0.12, 0.08, 0.06),
        },
        "test": {
            "greedy": errors(0.2, 0.07, 0.05, 0.08),
            "selected": errors(0.13, 0.065, 0.02, 0.045),
        },
    },
}
LSTM: dict[str, Any] = {
    "steps": 1_200,
    "parameters": 7_654_321,
    "metrics": {"phoneme_error_rate": 0.52},
    "recognition": {
        "selected": "greedy",
        "dev": {name: errors(0.7, 0.4, 0.2, 0.1) for name in ("greedy", "selected")},
        "test": {name: errors(0.4, 0.21, 0.14, 0.05) for name in ("greedy", "selected")},
    },
}


def tables(average: int, **runs: dict[str, Any]) -> list[dict[str, dict[str, str]]]:
    """The two tables: the cells of each run by the names of their columns."""
    named = {name.replace("_", "-"): run for name, run in runs.items()}
    text = comparison_table({"runs": named, "timing": TIMING, "average": average})
    found = []
    for table in text.strip().split("\n\n"):
        cells = [[x.strip() for x in line.strip("|").split("|")] for line in table.splitlines()]
        header, _, *rows = cells
        found.append({row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows})
    return found


def test_a_row_has_the_errors_and_the_costs_of_its_run() -> None:
    error_rates, costs = tables(5, linear_seed1=LINEAR, lstm=LSTM)
    assert error_rates["linear-seed1"] == {
        "test, greedy": "20.00%",
        "test, selected": "13.00%",
        "test, last weights": "18.75%",
        "dev, greedy": "30.00%",
        "dev, selected": "26.00%",
        "subst.": "6.50%",
        "ins.": "2.00%",
        "del.": "4.50%",
        "selected": "3-gram, weight 0.2, bonus 0",
    }
    assert error_rates["lstm"]["test, selected"] == "40.00%"
    assert costs == {
        "linear-seed1": {
            "updates": "9,600",
            "s per update": "0.250",
            "s per epoch": "2.50",
            "parameters": "1,234,567",
            "memory": "1,500 MB",
        },
        "lstm": {
            "updates": "1,200",
            "s per update": "2.00",
            "s per epoch": "20.0",
            "parameters": "7,654,321",
            "memory": "-",
        },
    }


def test_without_the_test_set_the_kinds_of_errors_are_those_of_dev() -> None:
    recognition = {name: x for name, x in LINEAR["recognition"].items() if name != "test"}
    error_rates, _ = tables(5, linear={**LINEAR, "recognition": recognition})
    assert error_rates["linear"] == {
        "dev, greedy": "30.00%",
        "dev, selected": "26.00%",
        "subst.": "12.00%",
        "ins.": "8.00%",
        "del.": "6.00%",
        "selected": "3-gram, weight 0.2, bonus 0",
    }


def test_weights_of_one_checkpoint_have_no_second_column() -> None:
    error_rates, _ = tables(1, linear=LINEAR)
    assert "test, last weights" not in error_rates["linear"]
