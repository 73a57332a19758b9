"""A case's result as a record of JSON, and back: for documents, and from another process."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.registry import Absent, Case, Method, Settings, Target
from benchmarks.runner import CaseResult, MethodResult, TargetResult
from benchmarks.timer import Spread

SHARES = ("value", "share_of_gemm", "share_of_copy")


def case_record(result: CaseResult) -> dict[str, Any]:
    """Returns all that is known of a case, samples of every round included."""
    case = result.case
    return {
        "name": case.name,
        "shows": case.shows,
        "quantity": case.quantity,
        "unit": case.unit,
        "series": case.series,
        "at": case.at,
        "summarized": case.summarized,
        "methods": [dataclasses.asdict(method) for method in result.methods],
        "targets": [
            {
                **dataclasses.asdict(outcome.target),
                "value": None if outcome.value is None else dataclasses.asdict(outcome.value),
                "reached": outcome.reached,
            }
            for outcome in result.targets
        ],
    }


def result_of(record: dict[str, Any]) -> CaseResult:
    """Returns the result of which `record` was made; its case cannot be set up again."""
    kept = ("name", "shows", "quantity", "unit", "series", "at", "summarized")
    targets = tuple(_target(entry) for entry in record["targets"])
    case = Case(
        **{name: record[name] for name in kept},
        setup=_already_run,
        targets=tuple(outcome.target for outcome in targets),
    )
    return CaseResult(case, tuple(_method(entry) for entry in record["methods"]), targets)


def unmeasured(case: Case, reason: str) -> CaseResult:
    """Returns the result of a case that gave none: each method that it promises says why.

    It leaves its series, whose tables compare methods that were at least looked for.
    """
    named = (name for t in case.targets for name in (t.numerator, t.denominator) if name)
    names = list(dict.fromkeys(named)) or ["every method"]
    return CaseResult(
        dataclasses.replace(case, series=None, at=None),
        tuple(MethodResult(name, reason) for name in names),
        tuple(TargetResult(target, None, None) for target in case.targets),
    )


def _already_run(_: Settings) -> list[Method | Absent]:
    raise ValueError("a case that was read from a record cannot be run")


def _target(entry: dict[str, Any]) -> TargetResult:
    rest = dict(entry)
    value, reached = _spread(rest.pop("value")), rest.pop("reached")
    return TargetResult(Target(**rest), value, reached)


def _method(entry: dict[str, Any]) -> MethodResult:
    spreads = {name: _spread(entry[name]) for name in SHARES}
    return MethodResult(**{**entry, **spreads, "samples": tuple(entry["samples"])})


def _spread(entry: dict[str, float] | None) -> Spread | None:
    return None if entry is None else Spread(**entry)
