"""Tables for README and packages: linear attention compared with others, by benchmarks."""

from __future__ import annotations

import itertools
import tomllib

from benchmarks.document import Results
from benchmarks.results import CaseResult
from benchmarks.series import by_series
from linattn_lab.store import latest_results, read_records, record_file
from linattn_lab.tables import figure, markdown_table
from replication.experiments import ROOT
from replication.published import RESULTS
from replication.records import Evidence, describe_records

# The GPUs whose tables are shown, the one that has run today's kernels first.
GPUS = ("h200", "h100")
PROCESS = ("ms to start", "MB", "KB")  # figures of the benchmark's methods
SPEEDS = tomllib.loads((ROOT / "replication" / "speeds.toml").read_text("utf-8"))["row"]


def speed(evidence: list[Evidence]) -> str:
    """The README's rows: linear attention compared with others."""
    rows, used = [], []
    for row in SPEEDS:
        theme = row["case"].partition("/")[0]
        records = read_theme(theme, row["place"])
        record = next((each for each in records if row["case"] in each.results), None)
        case = None if record is None else record.results[row["case"]]
        factor = times_as_fast(case, row["rival"], row["ours"])
        page = record_file(RESULTS, theme, row["place"]).with_suffix(".md").relative_to(ROOT)
        rows.append(f"| {row['words']} | {factor} | [{theme}]({page.as_posix()}) |")
        if record is not None:
            used.append(record)
    header = "| compared with | times as fast | all results |"
    table = "\n".join([header, "|---|---:|---|", *rows])
    return f"{table}\n\n{describe_records(used, evidence)}"


def gpu(evidence: list[Evidence]) -> str:
    """How many times as fast the CUDA kernels are as others, by length; the latest GPU first."""
    return "\n\n".join(gpu_table(place, evidence) for place in GPUS)


def gpu_table(place: str, evidence: list[Evidence]) -> str:
    """The results of one GPU, without columns of what was not measured there."""
    records = [each for each in read_theme("lengths", place) if by_series(each.results)]
    grouped = by_series(latest_results(records)).values()
    series = sorted(grouped, key=lambda cases: "backward" in cases[0].shows)
    lengths = sorted({case.at for each in series for case in each if case.at is not None})
    columns = [["positions", *(f"{n:,}" for n in lengths)]]
    for rival, cases in itertools.product(("softmax SDPA", "flash-linear-attention"), series):
        by_length = {case.at: times_as_fast(case, rival, "linear (cuda)") for case in cases}
        passes = "with gradients" if "backward" in cases[0].shows else "forward"
        values = [by_length.get(n, "-") for n in lengths]
        if set(values) != {"-"}:
            columns.append([f"{rival}, {passes}", *values])
    header, *rows = zip(*columns, strict=True)
    return f"{markdown_table(header, rows)}\n{describe_records(records, evidence)}"


def anywhere(evidence: list[Evidence]) -> str:
    """Tokens a second of each model by each way, and what a process of the first model takes."""
    records = read_theme("anywhere", "cpu")
    cases = latest_results(records)
    if not cases:
        return "Not measured yet."
    rows = []
    for method in next(iter(cases.values())).methods:
        each = [case.method(method.name) for case in cases.values()]
        rates = [one.status if one.seconds is None else f"{1 / one.seconds:,.0f}" for one in each]
        extras = [figure(method.figures.get(name)) for name in PROCESS]
        rows.append([method.name, *rates, *extras])
    names = [name.partition("/")[2] for name in cases]
    table = markdown_table(["tokens a second", *names, *PROCESS], rows)
    return f"{table}\n{describe_records(records, evidence)}"


def read_theme(theme: str, place: str) -> list[Results]:
    """The records of a theme on the CPU or a GPU."""
    return read_records(record_file(RESULTS, theme, place), Results)


def times_as_fast(case: CaseResult | None, rival: str, ours: str) -> str:
    """The median ratio of a rival's time to ours in a round, or that of their medians.

    The latter if the case does not compare the two; "-" where they were not measured.
    """
    if case is None:
        return "-"
    if ratio := case.ratio(rival, ours):
        return figure(ratio.median)
    theirs, own = (case.method(name).seconds for name in (rival, ours))
    return figure(theirs / own) if theirs and own else "-"
