"""Runs cases: sets up, checks every method, and measures those that are right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from benchmarks.machine import Limits
from benchmarks.registry import Absent, Case, Method, NotMeasured, Settings, Target
from benchmarks.timer import Measured, Spread, interleave, pairwise, spread

NOT_CORRECT = "not correct"
QUICK_SECONDS = 0.05
QUICK_ROUNDS = (1, 2)

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class MethodResult:
    """A method's figures, or the reason why there are none.

    Args:
        status: "measured", "not correct", or why it was not measured.
        samples: the case's quantity per call, one a round.
        value: the quantity per unit, median and quartiles; None unless measured.
        share_of_gemm: the algorithm's least operations at the measured speed, over the machine's
            GEMM rate that the method names; None where it does not apply.
        share_of_copy: the same of the least bytes moved, over the machine's copy bandwidth.
        peak: bytes that a call holds above its inputs, where the case measures them beside its
            quantity.
        note: which of several ways was measured.
        detail: what the check said, for the reader of the JSON.
    """

    name: str
    status: str
    samples: tuple[float, ...] = ()
    units: float = 1
    value: Spread | None = None
    share_of_gemm: Spread | None = None
    share_of_copy: Spread | None = None
    peak: float | None = None
    estimated: bool = False
    note: str = ""
    detail: str | None = None

    @property
    def peak_per_unit(self) -> float | None:
        """The peak over the case's units that a call does, such as the samples of its batch."""
        return None if self.peak is None else self.peak / self.units


@dataclasses.dataclass(frozen=True)
class TargetResult:
    """A promised figure beside what came out.

    Args:
        value: None when one of its methods has no figure.
        reached: None without a value, and in a quick run, whose sizes are not the promised ones.
    """

    target: Target
    value: Spread | None
    reached: bool | None


@dataclasses.dataclass(frozen=True)
class CaseResult:
    """Everything that one case gave."""

    case: Case
    methods: tuple[MethodResult, ...]
    targets: tuple[TargetResult, ...]

    def method(self, name: str) -> MethodResult:
        """The method of that name."""
        return next(method for method in self.methods if method.name == name)

    def ratio(self, numerator: str, denominator: str) -> Spread | None:
        """Quantity per unit of one method over another's, taken round by round."""
        above, below = self.method(numerator), self.method(denominator)
        if above.value is None or below.value is None:
            return None
        scale = below.units / above.units
        return spread([scale * ratio for ratio in pairwise(above.samples, below.samples)])


def run_cases(
    cases: Sequence[Case],
    settings: Settings,
    *,
    limits: Limits,
    progress: Progress = lambda words: None,
) -> Iterator[CaseResult]:
    """Yields each case's result as soon as it is there.

    Args:
        limits: the machine's, for the shares of them.
        progress: told in a few words what goes on.
    """
    for case in cases:
        yield run_case(case, settings, limits=limits, progress=progress)


def run_case(
    case: Case,
    settings: Settings,
    *,
    limits: Limits,
    progress: Progress = lambda words: None,
) -> CaseResult:
    """Returns the figures of one case; a method that fails its check gets none."""
    progress(f"{case.name}: setting up")
    entries = case.setup(settings)
    _check_names(case, entries)
    faults: dict[str, str] = {}
    entries = [_checked(case, entry, faults, progress) for entry in entries]
    correct = [entry for entry in entries if isinstance(entry, Method) and entry.name not in faults]
    measured = interleave(
        correct,
        seconds=QUICK_SECONDS if settings.quick else case.seconds,
        rounds=QUICK_ROUNDS if settings.quick else case.rounds,
        on_round=lambda taken: progress(f"{case.name}: round {taken}"),
    )
    methods = tuple(_method_result(entry, faults, measured, limits) for entry in entries)
    result = CaseResult(case, methods, ())
    result = dataclasses.replace(
        result, targets=tuple(_target(result, t, settings) for t in case.targets)
    )
    if case.done is not None:
        case.done(result)
    return result


def _check_names(case: Case, entries: Sequence[Method | Absent]) -> None:
    names = [entry.name for entry in entries]
    wanted = {t.numerator for t in case.targets} | {
        t.denominator for t in case.targets if t.denominator
    }
    if len(set(names)) != len(names) or not wanted <= set(names):
        raise ValueError(
            f"case {case.name!r} needs methods of distinct names, {sorted(wanted)} among them "
            f"for its targets, and has {names}"
        )


def _checked(
    case: Case, entry: Method | Absent, faults: dict[str, str], progress: Progress
) -> Method | Absent:
    """Notes what the check finds wrong; a method that cannot be checked cannot be measured."""
    if isinstance(entry, Absent):
        return entry
    progress(f"{case.name}: checking {entry.name}")
    try:
        fault = entry.check()
    except NotMeasured as reason:
        return Absent(entry.name, str(reason))
    if fault is not None:
        faults[entry.name] = fault
    return entry


def _method_result(
    entry: Method | Absent, faults: dict[str, str], measured: Measured, limits: Limits
) -> MethodResult:
    if isinstance(entry, Absent):
        return MethodResult(entry.name, entry.reason)
    if entry.name in faults:
        return MethodResult(entry.name, NOT_CORRECT, detail=faults[entry.name])
    if entry.name in measured.refused:
        return MethodResult(entry.name, measured.refused[entry.name])
    samples = measured.samples[entry.name]
    value = spread([sample / entry.units for sample in samples])
    return MethodResult(
        entry.name,
        "measured",
        samples=tuple(samples),
        units=entry.units,
        value=value,
        share_of_gemm=_share(entry.operations, getattr(limits, entry.rate), samples),
        share_of_copy=_share(entry.traffic, limits.copy_bandwidth, samples),
        peak=_peak(entry),
        estimated=entry.estimated,
        note=entry.note,
    )


def _peak(entry: Method) -> float | None:
    if entry.peak is None:
        return None
    try:
        return entry.peak()
    except NotMeasured:
        return None


def _share(amount: float, limit: float, samples: Sequence[float]) -> Spread | None:
    if not amount:
        return None
    return spread([amount / sample / limit for sample in samples])


def _target(result: CaseResult, target: Target, settings: Settings) -> TargetResult:
    if target.of_gemm:
        value = result.method(target.numerator).share_of_gemm
    elif target.of_copy:
        value = result.method(target.numerator).share_of_copy
    elif target.denominator is None:
        value = result.method(target.numerator).value
    else:
        value = result.ratio(target.numerator, target.denominator)
    if value is None or settings.quick:
        return TargetResult(target, value, None)
    return TargetResult(target, value, target.reached(value.median))
