"""What was measured: a record of each experiment and device, and the one behind each claim.

A file holds those of CPUs, results.json, another those of GPUs, results-cuda.json. A newer run of
an experiment on the same kind of device replaces the older one.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from linattn_lab.machine import Device
from linattn_lab.store import Record, read_records, record_file
from linattn_lab.tables import literal
from replication.claims import NOT_TESTED, Claim, Verdict
from replication.experiments import Preset

DEVICES: tuple[Device, ...] = get_args(Device)


class Measurement(BaseModel, frozen=True):
    """What a run of an experiment gave.

    Args:
        seconds: from its start to its end; where it continued, at least what all updates took;
            0 where other cases were measured with it.
        error: why it failed; empty where it did not.
        figures: by name, as its reader gives them.
        curves: of each training by name, lines of its metrics.
    """

    preset: Preset
    seconds: float = 0
    error: str = ""
    figures: dict[str, float] = {}
    curves: dict[str, list[dict[str, Any]]] = {}


@dataclass(frozen=True)
class Evidence:
    """The measurement of an experiment, with its record, which says when and where."""

    experiment: str
    record: Record[Measurement]

    @property
    def measurement(self) -> Measurement:
        """What the experiment gave."""
        return self.record.results[self.experiment]

    @property
    def device(self) -> Device:
        """Where it was measured."""
        return self.record.machine.device

    @property
    def figures(self) -> dict[str, float]:
        """Those of the measurement."""
        return self.measurement.figures


def read_evidence(folder: Path) -> list[Evidence]:
    """Returns the measurements that a folder holds."""
    files = [record_file(folder.parent, folder.name, device) for device in DEVICES]
    records = (record for file in files for record in read_records(file, Record[Measurement]))
    return [Evidence(name, record) for record in records for name in record.results]


def on_cpu(evidence: list[Evidence]) -> list[Evidence]:
    """Those that were measured on a CPU."""
    return [each for each in evidence if each.device == "cpu"]


def latest(evidence: list[Evidence]) -> dict[str, Evidence]:
    """The latest measurement of each experiment; of one day, that on a GPU."""
    ordered = sorted(evidence, key=lambda x: (x.record.date, DEVICES.index(x.device)))
    return {each.experiment: each for each in ordered}


def figures_of(evidence: list[Evidence], experiment: str) -> Mapping[str, float]:
    """The figures of an experiment; none where it was not run."""
    each = latest(evidence).get(experiment)
    return each.figures if each else {}


def describe_experiments(evidence: list[Evidence], *names: str) -> str:
    """A sentence on when and where experiments were measured."""
    known = latest(evidence)
    return describe_records([known[name].record for name in names if name in known], evidence)


def describe_records(records: Iterable[Record[Any]], evidence: list[Evidence]) -> str:
    """A sentence on the days, commits and machines of records; older ones are marked."""
    places: dict[str, list[str]] = {}
    for record in records:
        where = literal(re.split(r" \(|,", record.machine.hardware)[0])
        where += f", threads: {record.machine.threads}" * (record.machine.device == "cpu")
        places.setdefault(where, []).append(f"{record.date} at commit {literal(record.commit)}")
    words = [f"{', '.join(dict.fromkeys(days))} ({where})" for where, days in places.items()]
    return mark_older(f"Measured on {'; on '.join(words)}." if words else "Not measured.", evidence)


def mark_older(text: str, evidence: list[Evidence]) -> str:
    """Marks the days at least two before that of the replication's newest measurement."""
    newest = max((each.record.date for each in evidence), default="0001-01-02")
    limit = str(datetime.date.fromisoformat(newest) - datetime.timedelta(days=1))
    return re.sub(r"\d{4}-\d\d-\d\d", lambda x: x[0] + " (older)" * (x[0] < limit), text)


def find_evidence(claim: Claim, evidence: list[Evidence]) -> Evidence | None:
    """Returns the latest sound measurement; for a claim about a GPU, that on a GPU if there is one.

    Of one day, that of the better experiment, and on a GPU before a CPU.
    """
    sound = (
        each
        for name in claim.experiments
        for device in reversed(DEVICES)
        for each in evidence
        if each.experiment == name and each.device == device and not each.measurement.error
    )

    def order(each: Evidence) -> tuple[bool, str]:
        return claim.scale == "gpu" and each.device == "cuda", each.record.date

    return max(sound, key=order, default=None)


def judge_claim(claim: Claim, evidence: Evidence | None) -> Verdict:
    """Returns the verdict on a claim by a measurement."""
    if evidence is None:
        return NOT_TESTED
    return claim.judge(evidence.figures, evidence.measurement.preset, evidence.device)
