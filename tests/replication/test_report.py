"""The report: the same from the same measurements, whole, and readable without a network."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from benchmarks.measure.machine import Limits, Machine
from replication.claims import CLAIMS
from replication.collect import COLLECTED, FOLDER, Status, from_results, name_of
from replication.measurement import Measurement, read
from replication.report.__main__ import rendered
from replication.report.content import compose
from replication.report.page import page

STALE = "run `nox -s report` and commit docs/replication"
LARGEST = 100_000  # bytes of all measurements


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return rendered()


def test_the_committed_report_is_what_the_measurements_give(files: dict[str, str]) -> None:
    different = [name for name, text in files.items() if (FOLDER / name).read_text() != text]

    assert different == [], STALE


def test_what_was_collected_is_what_docs_results_holds() -> None:
    collected = {each.experiment: each.figures for each in read(FOLDER / COLLECTED)}
    now = {each.experiment: each.figures for each in from_results()}

    assert collected.keys() == now.keys(), STALE
    assert {name: pytest.approx(figures, rel=1e-3) for name, figures in now.items()} == collected


def test_measurements_stay_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.glob("*.json")) < LARGEST


def test_every_claim_is_in_the_report(files: dict[str, str]) -> None:
    assert [claim.name for claim in CLAIMS if claim.says not in files["report.md"]] == []


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


def verdicts(measurement: Measurement, status: Status, limits: Limits) -> dict[str, str]:
    text = compose([measurement], status, limits).text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0].removeprefix("| "): row[1] for row in rows if len(row) > 4}


def test_a_verdict_follows_the_measurement(measured: Measurement, limits: Limits) -> None:
    shown = verdicts(measured, Status("abc1234", {}), limits)

    by_name = {claim.name: shown[claim.says] for claim in CLAIMS if claim.says in shown}
    assert by_name["section3.2/positive"] == "confirmed"
    assert by_name["section3.3/causal"] == "not confirmed"
    assert by_name["section3.4/rnn"] == "not run"


def test_a_stale_measurement_confirms_nothing(measured: Measurement, limits: Limits) -> None:
    shown = verdicts(measured, Status("def5678", {name_of(measured): "changed"}), limits)

    assert "confirmed" not in shown.values()
    assert "stale: confirmed" in shown.values()


def test_words_of_a_failure_are_escaped(machine: Machine, limits: Limits) -> None:
    failed = Measurement("equations", "laptop", machine, error="<script>alert(1)</script> | x")
    report = compose([failed], Status("abc1234", {}), limits)

    assert "<script" not in page(report.text, report.plots, FOLDER)
