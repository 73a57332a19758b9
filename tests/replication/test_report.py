"""The generated table of claims and pictures, and the programs that measure."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from linattn_lab.machine import Device, Machine
from linattn_lab.store import Record
from replication import equations
from replication.claims import CLAIMS, CONFIRMED, IN_DIRECTION, NOT_TESTED
from replication.paper_tables import paper_shape
from replication.plots import draw_plots
from replication.published import FOLDER, read_published
from replication.records import (
    Evidence,
    Measurement,
    describe_records,
    find_evidence,
    judge_claim,
    mark_older,
)
from replication.tables import write_claims

CLAIM = next(claim for claim in CLAIMS if claim.name == "section4.2/300x")
BEST = "best/images-per-second"


def make_evidence(experiment: str, date: str, gain: float, error: str = "") -> Evidence:
    device: Device = "cuda" if experiment.endswith("-cuda") else "cpu"
    machine = Machine(device=device, hardware="x", software="torch", backends="cpu", threads=2)
    figures = {f"linear/{BEST}": gain, f"softmax/{BEST}": 1.0}
    measurement = Measurement(preset="laptop", seconds=1.0, error=error, figures=figures)
    return Evidence(experiment, Record[Measurement](
        command="x", date=date, commit="abc", machine=machine, results={experiment: measurement}
    ))  # fmt: skip


CPU = make_evidence("generation-mnist", "2026-11-25", 400.0)
GPU = make_evidence("generation-mnist-cuda", "2026-11-25", 500.0)
OLD_GPU = make_evidence("generation-mnist-cuda", "2026-11-24", 500.0)
FAILED = make_evidence("generation-mnist-cuda", "2026-11-26", 500.0, error="it is broken")


@pytest.mark.parametrize(
    ("evidence", "found", "verdict"),
    [
        ([CPU], CPU, IN_DIRECTION),
        ([CPU, GPU], GPU, CONFIRMED),
        ([GPU, CPU], GPU, CONFIRMED),
        ([CPU, OLD_GPU], OLD_GPU, CONFIRMED),
        ([OLD_GPU, GPU], GPU, CONFIRMED),
        ([CPU, FAILED], CPU, IN_DIRECTION),
        ([], None, NOT_TESTED),
    ],
)
def test_a_verdict_on_a_gpu_rests_on_the_latest_sound_measurement_of_one(
    evidence: list[Evidence], found: Evidence | None, verdict: str
) -> None:
    assert find_evidence(CLAIM, evidence) is found
    assert judge_claim(CLAIM, found) == verdict


def test_days_before_the_newest_measurement_are_marked() -> None:
    text = "on 2026-11-23, 2026-11-24 and 2026-11-26"
    assert mark_older(text, [GPU, OLD_GPU]) == "on 2026-11-23 (older), 2026-11-24 and 2026-11-26"
    assert mark_older(text, []) == text


def test_tables_of_the_kept_document_are_narrow_and_of_the_kept_records() -> None:
    text = (FOLDER / "claims.md").read_text()

    assert text == write_claims(read_published()), "run python -m nox -s report"
    assert max(len(line) for line in text.splitlines() if line.startswith("|")) <= 120


def test_text_of_a_record_is_never_markup(tmp_path: Path) -> None:
    odd = "x![y](/etc/hostname)`z`$\\a$"
    machine = CPU.record.machine.model_copy(update={"hardware": odd, "software": odd})
    lines = [{"step": x, "split": "train", "seconds": 1.0, "loss": 0.5} for x in (1, 2)]
    measurement = CPU.measurement.model_copy(update={"curves": {odd: lines}})
    update = {"commit": odd, "machine": machine, "results": {"copy": measurement}}
    evidence = [Evidence("copy", CPU.record.model_copy(update=update))]

    text = write_claims(evidence)

    assert "![" not in text + describe_records([evidence[0].record], evidence)
    assert re.findall(r"(?<!\\)`", text.split("## Measurements")[1]) == []
    assert len(draw_plots(evidence, tmp_path)) == 4


def test_the_law_of_the_paper_s_model_is_said_and_drawn(tmp_path: Path) -> None:
    lines = [
        {"step": x, "split": "eval", "bits_per_dim": 0.5 + x**-0.5} for x in range(10, 1001, 10)
    ]
    update = {"curves": {"mnist-shape": lines}, "figures": {"bits": 0.7, "updates": 1e3}}
    results = {"mnist-shape": CPU.measurement.model_copy(update=update)}
    evidence = [Evidence("mnist-shape", CPU.record.model_copy(update={"results": results}))]

    assert "0.500 + 1.00 / updates^0.50" in paper_shape(evidence)
    assert len(draw_plots(evidence, tmp_path)) == 4
    assert paper_shape([CPU]) == ""


def test_pictures_are_drawn_with_and_without_measurements(tmp_path: Path) -> None:
    for evidence in ([], read_published()):
        files = draw_plots(evidence, tmp_path)
        assert len(files) == 4
        assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_the_equations_hold_in_float64(tmp_path: Path) -> None:
    equations.main(equations.Flags(tmp_path))

    figures = json.loads((tmp_path / "figures.json").read_text())
    assert all(figures[form] < 1e-10 for form in ("associativity", "causal", "gradients", "rnn"))
    assert figures["constant-state"] == 1
