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
from replication.counts import KINDS, count_verdicts, identify
from replication.plots import draw_plots
from replication.records import (
    FOLDER,
    Evidence,
    Measurement,
    describe_records,
    find_evidence,
    judge_claim,
    read_evidence,
)
from replication.seeds import describe_difference
from replication.tables import claims_table, describe_claim, write_claims

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


def test_a_row_has_the_verdict_and_both_ratios_and_below_it_stands_the_rest() -> None:
    cells = [cell.strip() for cell in claims_table([CLAIM], [CPU]).splitlines()[2].split("|")]
    words = describe_claim(CLAIM, [CPU])

    assert cells[1:-1] == [CLAIM.name, IN_DIRECTION, CLAIM.paper, "400"]
    assert words.startswith(f"- `{CLAIM.name}`: {CLAIM.where}: {CLAIM.says}")
    assert "ratio at least 300" in words
    assert "400 over 1.00 images/s, on the CPU, by generation-mnist" in words


def test_what_was_trained_for_a_few_updates_has_no_number_beside_the_papers() -> None:
    claim = next(each for each in CLAIMS if each.name == "table2/softmax/bits-per-dim")
    figures = {"linear/bits-equal-time": 7.9, "softmax/bits-equal-time": 8.1, "softmax/updates": 40}
    measurement = CPU.measurement.model_copy(update={"figures": figures})
    update = {"results": {"bits-cifar10": measurement}}
    short = [Evidence("bits-cifar10", CPU.record.model_copy(update=update))]

    row = claims_table([claim], short).splitlines()[2]

    assert NOT_TESTED in row and row.split("|")[4].strip() == "-"
    assert "40 updates" in describe_claim(claim, short)


def test_a_ratio_inside_its_noise_is_called_so() -> None:
    claim = next(each for each in CLAIMS if each.name == "table3/softmax/per")
    words = []
    for errors in (22.0, 60.0):
        measurement = CPU.measurement.model_copy(
            update={"figures": {"linear/per": 20.0, "softmax/per": errors}}
        )
        record = CPU.record.model_copy(update={"results": {"speech": measurement}})
        words.append(describe_claim(claim, [Evidence("speech", record)]))

    assert ["within noise" in each for each in words] == [True, False]


def test_every_claim_is_in_the_document_without_any_measurement() -> None:
    text = write_claims([])

    rows = re.findall(r"^\| [\w.]+/.*\| +not tested \|", text, re.M)
    assert len(rows) == len(CLAIMS)
    assert [claim.name for claim in CLAIMS if f"{claim.where}: {claim.says}" not in text] == []


def test_a_number_that_stands_in_several_places_counts_once() -> None:
    rows = [row.split("|")[1:-1] for row in count_verdicts(read_evidence()).splitlines()[2:]]
    in_all = {row[0].strip(): int(row[1]) for row in rows}

    assert list(in_all) == list(KINDS)
    assert all(sum(map(int, row[3:])) == int(row[1]) for row in rows)
    by_name = {claim.name: identify(claim) for claim in CLAIMS}
    assert sum(in_all.values()) == len(set(by_name.values())) < len(CLAIMS)
    same = {
        "table1/linear/images-per-second", "table1/softmax/images-per-second",
        "table4/mnist/linear/images-per-second",
    }  # fmt: skip
    assert len({by_name[name] for name in same}) == 1
    assert by_name["abstract/4000x"] != by_name["section4.2/1000x"]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ([2.0, 2.6], [2.4, 3.0], "within"),
        ([2.0, 2.1], [9.0, 9.1], "beyond"),
        ([2.0], [9.0, 9.1], "one seed"),
    ],
)
def test_a_difference_of_seeds_is_told_from_noise(
    first: list[float], second: list[float], words: str
) -> None:
    assert words in describe_difference(first, second)


def test_records_say_when_and_where_and_older_ones_are_marked() -> None:
    words = describe_records([GPU.record, CPU.record, CPU.record], [FAILED])
    places = "2026-11-25 at commit abc (x); on 2026-11-25 at commit abc (x, 2 threads)"
    assert words == f"Measured on {places}."

    later = make_evidence("copy", "2026-11-27", 1.0)
    words = describe_records([later.record, CPU.record], [later])
    assert words.count("older") == 1 and words.index("11-25") < words.index("older")


def test_tables_of_the_kept_document_are_narrow_and_of_the_kept_records() -> None:
    text = (FOLDER / "claims.md").read_text()

    assert text == write_claims(read_evidence()), "run python -m nox -s report"
    assert max(len(line) for line in text.splitlines() if line.startswith("|")) <= 120


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

    assert "confirmed" in write_claims(odd)
    assert len(draw_plots(odd, tmp_path)) == 4


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
