"""The generated table of claims and pictures, and the programs that measure."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from linattn_lab.machine import Device, Machine
from linattn_lab.store import Record
from replication import equations
from replication.claims import CLAIMS, CONFIRMED, IN_DIRECTION, NOT_RUN
from replication.plots import draw_plots
from replication.records import (
    FOLDER,
    Evidence,
    Measurement,
    find_evidence,
    judge_claim,
    list_pictures,
    read_evidence,
)
from replication.tables import claims_table, write_claims

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
        ([], None, NOT_RUN),
    ],
)
def test_a_verdict_on_a_gpu_rests_on_the_latest_sound_measurement_of_one(
    evidence: list[Evidence], found: Evidence | None, verdict: str
) -> None:
    assert find_evidence(CLAIM, evidence) is found
    assert judge_claim(CLAIM, found) == verdict


def test_a_row_has_the_verdict_the_rule_and_both_figures() -> None:
    cells = [cell.strip() for cell in claims_table([CLAIM], [CPU]).splitlines()[2].split("|")]

    assert IN_DIRECTION in cells
    assert "ratio at least 300" in cells
    assert any("400 over 1.00 images/s, on the CPU" in cell for cell in cells)
    assert "generation-mnist" in cells


def test_every_claim_is_in_the_document_without_any_measurement() -> None:
    text = write_claims([])

    assert len(re.findall(r"\| +not run \|", text)) == len(CLAIMS)
    assert [claim.name for claim in CLAIMS if f"{claim.where}: {claim.says}" not in text] == []


def test_the_kept_document_is_that_of_the_kept_records() -> None:
    pictures = sorted((FOLDER / "pictures").glob("*/*.png"))

    assert (FOLDER / "claims.md").read_text() == write_claims(read_evidence(), pictures)


@pytest.mark.parametrize("value", [None, 0.0])
def test_records_of_figures_that_are_zero_or_missing_are_shown(
    tmp_path: Path, value: float | None
) -> None:
    odd = []
    for each in read_evidence():
        figures = {} if value is None else dict.fromkeys(each.figures, value)
        measurement = each.measurement.model_copy(update={"figures": figures, "curves": {}})
        results = {each.experiment: measurement, "unknown": measurement}
        record = each.record.model_copy(update={"results": results})
        odd += [Evidence(name, record) for name in results]

    assert "| confirmed " in write_claims(odd)
    assert len(draw_plots(odd, tmp_path)) == 4


def test_text_of_a_record_and_names_of_pictures_are_never_markup(tmp_path: Path) -> None:
    odd = "x![y](/etc/hostname)`z`$\\a$"
    machine = CPU.record.machine.model_copy(update={"hardware": odd, "software": odd})
    lines = [{"step": x, "split": "train", "seconds": 1.0, "loss": 0.5} for x in (1, 2)]
    measurement = CPU.measurement.model_copy(update={"curves": {odd: lines}})
    update = {"commit": odd, "machine": machine, "results": {"copy": measurement}}
    evidence = [Evidence("copy", CPU.record.model_copy(update=update))]
    folder = tmp_path / "pictures" / "copy"
    folder.mkdir(parents=True)
    (folder / "a](b.png").touch()
    (folder / "c.png").symlink_to(__file__)

    text = write_claims(evidence, list_pictures(tmp_path))

    assert text.count("![") == 1
    assert r"![a\](b](pictures/copy/a%5D%28b.png)" in text
    assert re.findall(r"(?<!\\)`", text.split("## Measurements")[1]) == []
    assert len(draw_plots(evidence, tmp_path)) == 4


def test_pictures_are_drawn_with_and_without_measurements(tmp_path: Path) -> None:
    for evidence in ([], read_evidence()):
        files = draw_plots(evidence, tmp_path)
        assert len(files) == 4
        assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_the_equations_hold_in_float64(tmp_path: Path) -> None:
    equations.main(equations.Flags(tmp_path))

    figures = json.loads((tmp_path / "figures.json").read_text())
    assert all(figures[form] < 1e-10 for form in ("associativity", "causal", "gradients", "rnn"))
    assert figures["constant-state"] == 1
