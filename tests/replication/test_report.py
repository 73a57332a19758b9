"""The report: the same from the same measurements, whole, and readable without a network."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

import copying.presets
import pixels.presets
import speech.presets
from benchmarks.measure.machine import Limits, Machine
from replication.claims import CLAIMS
from replication.collect import FOLDER, Stored
from replication.cost import GRID_BATCHES, GRID_LENGTHS, MNIST
from replication.measurement import Measurement, Spent
from replication.report.__main__ import PAGE, rendered
from replication.report.content import TEMPLATE, compose
from replication.report.page import page
from replication.report.speedups import moved

STALE = "run `nox -s report` and commit docs/replication"
LARGEST = 100_000  # bytes of all measurements


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return rendered()


def test_the_committed_report_is_what_the_measurements_give(files: dict[str, str]) -> None:
    kept = {name: text for name, text in files.items() if name != PAGE}
    different = [name for name, text in kept.items() if (FOLDER / name).read_text() != text]

    assert different == [], STALE
    drawn = {f"figures/{file.name}" for file in (FOLDER / "figures").iterdir()}
    assert drawn == kept.keys() - {"report.md"}, STALE


def test_measurements_stay_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.glob("*.json")) < LARGEST


def test_every_claim_is_in_the_report_with_its_place_and_hardware(files: dict[str, str]) -> None:
    shown = {claim.name: f"{claim.where}: {claim.says}" for claim in CLAIMS}
    assert [name for name, words in shown.items() if words not in files["report.md"]] == []
    assert [x.name for x in CLAIMS if x.hardware not in files["report.md"]] == []


class Page(HTMLParser):
    """What a page loads, links to and names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag not in ("meta", "link", "img", "hr", "br"):
            self.open.append(tag)
        if "id" in given:
            self.ids.append(str(given["id"]))
        if tag == "a":
            self.links.append(str(given.get("href")))
        elif tag != "use":
            self.loaded += [str(given[name]) for name in ("src", "href") if name in given]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone(files: dict[str, str]) -> None:
    html = files["report.html"]
    parsed = Page(html)

    assert parsed.open == []
    assert parsed.loaded
    assert [source[:30] for source in parsed.loaded if not source.startswith("data:")] == []
    assert "<script" not in html
    assert "@import" not in html
    assert re.findall(r"url\((?!#)", html) == []
    assert 'name="viewport"' in html


def test_links_within_the_page_lead_somewhere(files: dict[str, str]) -> None:
    parsed = Page(files["report.html"])
    anchors = {link[1:] for link in parsed.links if link.startswith("#")}

    assert anchors
    assert anchors - set(parsed.ids) == set()
    headings = [name for name in parsed.ids if f'<h3 id="{name}"' in files["report.html"]]
    assert len(set(headings)) == len(headings)


@pytest.fixture
def measured(machine: Machine) -> Measurement:
    return Measurement("equations", "laptop", machine, {"positive": 2.0, "causal": 1e-3})


def rows(limits: Limits, *stored: Stored) -> dict[str, list[str]]:
    text = compose(list(stored), limits).text
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0].partition(": ")[2]: row for row in cells if len(row) > 4}  # after the place


def verdicts(limits: Limits, *stored: Stored) -> dict[str, str]:
    return {name: row[1] for name, row in rows(limits, *stored).items()}


def test_a_verdict_follows_the_measurement(measured: Measurement, limits: Limits) -> None:
    shown = verdicts(limits, Stored(measured, None))

    by_name = {claim.name: shown[claim.says] for claim in CLAIMS if claim.says in shown}
    assert by_name["section3.2/positive"] == "confirmed"
    assert by_name["section3.3/causal"] == "not confirmed"
    assert by_name["section3.4/rnn"] == "not run"


def test_a_stale_measurement_confirms_nothing(measured: Measurement, limits: Limits) -> None:
    shown = verdicts(limits, Stored(measured, "changed"))

    assert "confirmed" not in shown.values()
    assert "stale: confirmed" in shown.values()


def test_rows_that_turn_a_ratio_around_are_one_measurement(
    machine: Machine, limits: Limits
) -> None:
    names = ("linear/1/seconds", "softmax/1/seconds")
    figures = dict(zip(names, (5.5, 72.6), strict=True))
    measurement = Measurement("generation-mnist", "laptop", machine, figures)

    text = compose([Stored(measurement, None)], limits).text

    assert "| confirmed | 2 (1) | 0 (0) |" in text


def test_the_row_shows_bounds_compiled_steps_and_faults(machine: Machine, limits: Limits) -> None:
    figures = {"linear/1/seconds": 5.0, "linear-compiled/1/seconds": 2.0,
               "softmax/1/seconds": 50.0, "stateful-softmax/1/seconds": 0.0}  # fmt: skip
    measurement = Measurement("generation-mnist", "laptop", machine, figures)

    shown = rows(limits, Stored(measurement, None))

    softmax = shown["softmax takes 72.6 s for one image (linear: 5.5 s)."]
    assert softmax[3] == "ratio 10.6 to 16.5"
    assert softmax[6:8] == ["10", "25"]
    faulty = shown["stateful-softmax takes 7.4 s for one image (linear: 5.5 s)."]
    assert faulty[1] == "not confirmed; stateful-softmax/1/seconds is 0"


def test_the_row_shows_both_figures_of_a_ratio(machine: Machine, limits: Limits) -> None:
    figures = {"linear/1/seconds": 5.0, "softmax/1/seconds": 2_500.0}
    measurement = Measurement("generation-mnist", "laptop", machine, figures)

    row = rows(limits, Stored(measurement, None))[
        "softmax takes 72.6 s for one image (linear: 5.5 s)."
    ]

    assert row[4] == "2,500 over 5 s"


def test_the_row_shows_after_how_many_updates(machine: Machine, limits: Limits) -> None:
    figures = {"lsh-1/samples-over-independent": 0.9, "lsh-1/updates": 120.0}
    measurement = Measurement("bits-mnist", "laptop", machine, figures)

    row = rows(limits, Stored(measurement, None))["lsh-1 draws samples of MNIST."]

    assert row[4].endswith("after 120 updates, too few to decide")


def test_a_claim_that_was_not_run_says_what_it_needs(limits: Limits) -> None:
    shown = verdicts(limits)

    assert shown["linear draws samples of CIFAR-10."] == "not run; needs the data set cifar10"
    assert shown["A single GPU generates 10,000 MNIST images at once."] == "not run; needs a GPU"
    assert shown["The feature map elu(x) + 1 makes every similarity positive."] == "not run"


def test_the_grid_of_lengths_and_batches_stands_beside_what_is_counted(
    machine: Machine, limits: Limits
) -> None:
    figures = {"linear/256/8/seconds": 2.0, "linear-compiled/256/8/seconds": 0.5,
               "softmax/256/8/seconds": 8.0, "linear/784/64/seconds": 3.0}  # fmt: skip
    measurement = Measurement("speedup", "laptop", machine, figures)

    text = compose([Stored(measurement, None)], limits).text

    assert "| softmax that reruns | 256 | 8 | 4.00x | 16.0x |" in text
    assert "| 784 | 64 |" not in text


def test_a_report_of_nothing_claims_no_speed_up(limits: Limits) -> None:
    text = compose([], limits).text

    images = [line.split(" | ") for line in text.splitlines() if "the best of each |" in line]
    assert images
    assert {row[i] for row in images for i in (3, 4, 6, 7)} == {"-"}  # what was measured here
    assert "up to - was measured here" in text


def test_a_loss_is_not_called_a_gain(machine: Machine, limits: Limits) -> None:
    figures = {"linear/1/seconds": 4.0, "stateful-softmax/1/seconds": 1.0}
    measurement = Measurement("generation-cifar10-cuda", "laptop", machine, figures, device="cuda")

    text = compose([Stored(measurement, None)], limits).text

    advice = text[text.index("## Advice") :]
    assert "- and 0.250x on the GPU, by linattn's operator" in advice


def test_the_best_batches_of_every_machine_are_shown(machine: Machine, limits: Limits) -> None:
    best = "best/images-per-second"
    first = Measurement("generation-mnist", "laptop", machine,
                        {f"linear/{best}": 400.0, f"softmax/{best}": 1.0,
                         "linear/best/batch": 512.0, "softmax/best/batch": 2.0})  # fmt: skip
    other = dataclasses.replace(
        first, machine=dataclasses.replace(machine, hardware="another CPU"),
        figures={f"linear/{best}": 700.0, f"softmax/{best}": 1.0},
    )  # fmt: skip

    text = compose([Stored(first, None), Stored(other, "changed")], limits).text

    assert "gain 400x to 700x (MNIST)" in text
    assert "| fresh | 512 | - | - | 2 | 400x |" in text
    assert "| stale | - | - | - | - | 700x |" in text


def test_a_document_of_a_run_that_has_a_record_is_no_other_machine(
    machine: Machine, limits: Limits
) -> None:
    best = "best/images-per-second"
    record = Measurement("generation-mnist", "laptop", machine,
                         {f"linear/{best}": 400.0, f"softmax/{best}": 1.0})  # fmt: skip
    same = dataclasses.replace(
        record, source="docs/results/x", figures={f"linear/{best}": 401.0, f"softmax/{best}": 1.0}
    )
    earlier = dataclasses.replace(same, machine=dataclasses.replace(machine, commit="before"))

    def shown(document: Measurement) -> bool:
        return "| 401x |" in compose([Stored(record, None), Stored(document, "old")], limits).text

    assert shown(earlier)
    assert not shown(same)


def test_the_memory_of_a_gpus_run_is_called_its_hosts(machine: Machine, limits: Limits) -> None:
    made = Measurement("generation-mnist-cuda", "laptop", machine, {"linear/1/seconds": 1.0},
                       spent=Spent(60.0, 1.7e9, 2.0, 7e8), device="cuda")  # fmt: skip

    text = compose([Stored(made, None)], limits).text

    assert "| 1.7 (host's) | 1 |" in text


@pytest.mark.parametrize("length", GRID_LENGTHS[1:])  # 64 keys are as small as a state
def test_a_cache_costs_more_bytes_the_larger_the_batch(length: int) -> None:
    factors = [moved("stateful-softmax", length, batch) for batch in GRID_BATCHES]

    assert factors == sorted(factors, key=lambda factor: factor or 0.0)
    assert moved("softmax", length, 1) is None


def test_bytes_of_a_huge_batch_are_those_of_cache_and_state() -> None:
    at = dataclasses.replace(MNIST, positions=3_072)

    # The state is read and written; half of the cache is read, on the average.
    wanted = at.state("stateful-softmax") / 2 / (2 * at.state("linear"))
    assert moved("stateful-softmax", 3_072, 10**9) == pytest.approx(wanted)


def test_a_gpus_measurement_comes_before_a_cpus(machine: Machine, limits: Limits) -> None:
    best = "best/images-per-second"
    cpu = Measurement("generation-mnist", "laptop", machine,
                      {f"linear/{best}": 400.0, f"softmax/{best}": 1.0})  # fmt: skip
    gpu = dataclasses.replace(
        cpu, experiment="generation-mnist-cuda", device="cuda",
        figures={f"linear/{best}": 310.0, f"softmax/{best}": 1.0},
    )  # fmt: skip
    says = "Linear attention generates MNIST images more than 300 times faster."

    assert verdicts(limits, Stored(cpu, None))[says] == "confirmed in direction"
    assert verdicts(limits, Stored(cpu, None), Stored(gpu, None))[says] == "confirmed"
    stale = Stored(gpu, "changed")
    assert verdicts(limits, Stored(cpu, None), stale)[says] == "confirmed in direction"
    text = compose([Stored(cpu, None), Stored(gpu, None)], limits).text
    assert "| MNIST | the best of each | - | 400x | - | - | - | 310x | - | 317x |" in text
    row = rows(limits, Stored(cpu, None), stale)[says]
    assert "400 over 1 images/s, on the CPU (stale, on a GPU: 310 over 1)" in row[4]
    text = compose([Stored(cpu, None), stale], limits).text
    assert f"Stale in this table: MNIST on the GPU (commit `{machine.commit}`)." in text


def test_a_claim_that_failed_says_why(machine: Machine, limits: Limits) -> None:
    failed = Stored(Measurement("equations", "laptop", machine, error="ValueError: broken"), None)

    shown = verdicts(limits, failed)["The feature map elu(x) + 1 makes every similarity positive."]

    assert shown == "not run; failed: `ValueError: broken`"
    text = compose([failed], limits).text
    assert "Not run: [equations](#equations) failed: `ValueError: broken`." in text


RECIPES: dict[str, Callable[[str], Any]] = {
    "copy": lambda preset: copying.presets.PRESETS[preset](),
    "MNIST": lambda preset: pixels.presets.PRESETS[preset]("mnist"),
    "CIFAR-10": lambda preset: pixels.presets.PRESETS[preset]("cifar10"),
    "speech": lambda preset: speech.presets.PRESETS[preset]("linear"),
}


@pytest.mark.parametrize("training", RECIPES)
@pytest.mark.parametrize(("preset", "whose"), [("laptop", "here"), ("paper", "paper")])
def test_hyper_parameters_are_those_of_the_presets(training: str, preset: str, whose: str) -> None:
    recipe = RECIPES[training](preset)
    lines = TEMPLATE.read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith(f"| {training}, {whose} |"))
    layers, heads, wide, _, norm, optimizer, rate, schedule, batch, *_ = line.split(" | ")[1:]

    flags = recipe.training
    before = getattr(recipe, "norm", "pre")  # speech has no other
    values = (recipe.num_layers, recipe.ffn_dim, before, flags.optimizer, flags.learning_rate,
              flags.batch_size)  # fmt: skip
    cells = layers, wide, norm, optimizer, rate, batch.partition(" ")[0]
    given = {"-"} if whose == "paper" else set()  # what the paper does not give is ours
    for cell, value in zip(cells, values, strict=True):
        assert cell in given | {f"{value:,}" if isinstance(value, int) else f"{value}"}
    assert f"{recipe.num_heads} of {recipe.head_dim}".startswith(heads) or heads in given
    assert whose == "paper" or schedule == flags.schedule


def test_words_of_a_failure_are_escaped(machine: Machine, limits: Limits) -> None:
    failed = Measurement("equations", "laptop", machine, error="<script>alert(1)</script> | x")
    report = compose([Stored(failed, None)], limits)

    assert "<script" not in page(report.text, report.plots, FOLDER)
