"""The document of a theme: a picture, the latest result of each of its cases, the run of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.plots import choose_bars, list_ratios, name_ratio, plot_theme
from benchmarks.results import CaseResult, MethodResult, Spread
from benchmarks.series import describe_crossover, describe_series
from linattn_lab.runs import make_folders
from linattn_lab.store import Record, add_record, latest_results, read_records, record_file
from linattn_lab.tables import code, figure, literal, markdown_table, memory, seconds
from linattn_models.basics.files import replace_file

Results = Record[CaseResult]
CLOSING = (
    "Medians with quartiles over interleaved rounds; ratios are taken round by round. A method "
    "is measured only after its result agreed with a float64 oracle. The record beside this page "
    "has the number of rounds, and the work of each method over what the machine can do."
)
ONCE = "Values of one round: {once} of {all}. Each of these is a single measurement."
QUICK = "A quick run at tiny sizes: the cases run, the numbers mean nothing."
BARS = "How many times as fast the first of two methods is as the second. Left of 1 it is slower."
SAYS = {
    "parallel": "Processor time of one process over that of each of two ranks: 2 is ideal. The "
    "ranks share the cores of one machine, so this is not elapsed time."
}
LEADING = "The picture shows some of the comparisons; the table shows all."
CURVES = {
    "crossover": "How many times as fast linear attention is as softmax attention, by length.",
    "lengths": "Time for each sequence, by length.",
    "speech": "Time of an update for each utterance, by its frames.",
}
TITLES = {"lsh": "LSH"}
METHODS = ("case", "method", "per", "median", "quartiles", "run", "peak memory")


def write_results(folder: Path, theme: str, record: Results, order: Iterable[str]) -> None:
    """Adds a record to those of a theme, and writes the theme's document.

    Args:
        order: the names of all cases that there are.
    """
    file = record_file(folder, theme, record.machine.place)
    add_record(file, record)
    records = read_records(file, Results)
    plot_theme(picture_file(file), theme, latest(records, order))
    replace_file(file.with_suffix(".md"), to_markdown(theme, records, order).encode())


def try_results(folder: Path | None, theme: str, place: str) -> None:
    """Refuses a folder that cannot be written, and older results that cannot be read."""
    if folder is None:
        return
    file = record_file(folder, theme, place)
    make_folders(file.parent)
    read_records(file, Results)


def to_markdown(theme: str, records: Sequence[Results], order: Iterable[str]) -> str:
    """Returns the document for readers; results of cases that are in no order are left out."""
    machine = records[0].machine
    where = f"on a GPU ({machine.gpu})" if machine.gpu else "on a CPU"
    numbers = {name: str(n) for n, each in enumerate(records, 1) for name in each.results}
    results = latest(records, order)
    describe = describe_crossover if theme == "crossover" else describe_series
    runs = (f"- **run {n}**: {_describe(each)}" for n, each in enumerate(records, 1))
    parts = [
        f"# {TITLES.get(theme, theme.capitalize())}, {where}",
        *([QUICK] if any("--quick" in each.command for each in records) else []),
        *_picture(theme, machine.place, results),
        *describe(results),
        *_ratios(theme, results, numbers),
        *_methods(results, numbers),
        *_figures(results),
        *_cases(results),
        "## How it was measured",
        "Each case shows the latest run that measured it:",
        "\n".join(runs),
        " ".join([CLOSING, *_say_once(results)]),
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def latest(records: Sequence[Results], order: Iterable[str]) -> dict[str, CaseResult]:
    """Returns the latest result of each case, in the order of their names."""
    known = latest_results(records)
    return {name: known[name] for name in order if name in known}


def picture_file(file: Path) -> Path:
    """Returns where the picture of a record file stands."""
    return file.with_suffix(".png")


def _picture(theme: str, place: str, results: Mapping[str, CaseResult]) -> list[str]:
    """The theme's picture and what it shows, where there is something to draw."""
    if any(result.series is not None for result in results.values()):
        says = CURVES.get(theme, BARS)
    elif shown := choose_bars(theme, results):
        says = SAYS.get(theme, BARS)
        says += f" {LEADING}" * (len(shown) < len(list_ratios(results)))
    else:
        return []
    picture = picture_file(record_file(Path(), theme, place)).name
    return [says, f"![{theme}]({picture})"]


def _describe(record: Results) -> str:
    machine = record.machine
    where = literal(
        f"{record.date}, commit {record.commit}; {machine.hardware}, threads: {machine.threads}; "
        f"{machine.software}; backends: {machine.backends}."
    )
    return f"{code(record.command)}, {where}"


def _ratios(theme: str, results: Mapping[str, CaseResult], runs: Mapping[str, str]) -> list[str]:
    """One row for each pair of methods that a case compares."""
    header = ("case", "method", "compared with", name_ratio(theme), "quartiles", "run")
    rows = [
        [_case(name), each.denominator, each.numerator, figure(each.value.median),
         _quartiles(each.value, figure), runs[name]]
        for name, each in list_ratios(results)
    ]  # fmt: skip
    return ["## Side by side", markdown_table(header, rows)] if rows else []


def _methods(results: Mapping[str, CaseResult], runs: Mapping[str, str]) -> list[str]:
    """A row for each method that is in no series, without columns that are empty in every row."""
    rows = [
        _method_row(name, result, method, runs[name])
        for name, result in results.items()
        if result.series is None
        for method in result.methods
    ]
    if not rows:
        return []
    columns = zip(METHODS, *rows, strict=True)
    header, *filled = zip(*(c for c in columns if set(c[1:]) != {"-"}), strict=True)
    return ["## Everything measured", markdown_table(header, filled)]


def _method_row(case: str, result: CaseResult, method: MethodResult, run: str) -> list[str]:
    name = f"{method.name}, {method.note}" if method.note else method.name
    median = method.status if method.value is None else seconds(method.seconds)
    quartiles = "-" if method.value is None else _quartiles(method.value, seconds)
    return [_case(case), name, result.unit, median, quartiles, run, memory(method.peak)]


def _figures(results: Mapping[str, CaseResult]) -> list[str]:
    """What was measured other than time: a column for each case."""
    known: dict[tuple[str, str], dict[str, float]] = {}
    for name, result in results.items():
        for method in result.methods:
            for quantity, value in method.figures.items():
                known.setdefault((method.name, quantity), {})[name] = value
    if not known:
        return []
    cases = [name for name in results if any(name in row for row in known.values())]
    rows = [[*key, *(figure(row.get(name)) for name in cases)] for key, row in known.items()]
    return [markdown_table(("method", "quantity", *map(_case, cases)), rows)]


def _cases(results: Mapping[str, CaseResult]) -> list[str]:
    """What each case is that is in no series; several that say the same are on one line."""
    names: dict[str, list[str]] = {}
    for name, result in results.items():
        if result.series is None:
            names.setdefault(result.shows, []).append(code(_case(name)))
    lines = (f"- {', '.join(each)}: {literal(shows)}" for shows, each in names.items())
    return ["## The cases", "\n".join(lines)] if names else []


def _say_once(results: Mapping[str, CaseResult]) -> list[str]:
    """How many values rest on one round, where some do."""
    rounds = [x.rounds for result in results.values() for x in result.methods if x.rounds]
    once = rounds.count(1)
    return [ONCE.format(once=f"{once:,}", all=f"{len(rounds):,}")] if once else []


def _case(name: str) -> str:
    """A case without its theme, which is the document's title."""
    return name.partition("/")[2]


def _quartiles(value: Spread, show: Callable[[float], str]) -> str:
    return f"{show(value.low)} to {show(value.high)}"
