"""How many claims have which verdict: by what a verdict can tell, each number of the paper once."""

from __future__ import annotations

from collections.abc import Hashable

from linattn_lab.tables import markdown_table
from replication.claims import CLAIMS, NOT_TESTED, VERDICTS, Claim
from replication.records import Evidence, find_evidence, judge_claim

KINDS = ("numbers, same size", "numbers, smaller", "statements")
HEADER = ("claims", "all", "within a factor of 2", "confirmed", "in direction", "not confirmed")


def count_verdicts(evidence: list[Evidence]) -> str:
    """A table with a row for each kind of claims."""
    once = {identify(claim): claim for claim in reversed(CLAIMS)}.values()
    rows = []
    for kind in KINDS:
        pairs = [(claim, find_evidence(claim, evidence)) for claim in once]
        chosen = [(x, found) for x, found in pairs if describe_kind(x, found) == kind]
        verdicts = [judge_claim(*each) for each in chosen]
        near = f"{sum(is_near(*each) for each in chosen)}" if kind == KINDS[0] else ""
        counts = [f"{verdicts.count(verdict)}" for verdict in VERDICTS]
        rows.append([kind, f"{len(chosen)}", near, *counts])
    return markdown_table([*HEADER, NOT_TESTED], rows)


def identify(claim: Claim) -> Hashable:
    """What is the same for claims about one number: in two places, or a ratio and its inverse."""
    figures = frozenset(frozenset(rule.figures) for rule in claim.rules)
    return claim.experiments, figures, () if claim.rules[0].is_number else claim.rules


def describe_kind(claim: Claim, found: Evidence | None) -> str:
    """Whether a claim is a number, and was measured with models of the paper's size."""
    if not claim.rules[0].is_number:
        return KINDS[2]
    preset = "laptop" if found is None else found.measurement.preset
    return KINDS[claim.scale == "training" and preset != "paper"]


def is_near(claim: Claim, found: Evidence | None) -> bool:
    """Whether our ratio is within a factor of two of the paper's."""
    if found is None or judge_claim(claim, found) == NOT_TESTED:
        return False
    rule = claim.rules[0]
    value = rule.value(found.figures)
    return value is not None and 0.5 <= value / (rule.paper or 1.0) <= 2
