"""The attention cases: figure 1 of the paper, heads few and many, widths, dtypes, schedules."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import oracle
from benchmarks.cases.attention import (
    FAST_TRANSFORMERS,
    FLASH_LINEAR_ATTENTION,
    LINEAR,
    LINEAR_CUDA,
    MATERIALISED,
    SDPA,
    Attention,
    Problem,
    attention,
    method,
    method_of,
    per_sample,
)
from benchmarks.gpu.instrument import Instrument, instrument
from benchmarks.gpu.placed import guarded, placed
from benchmarks.growth import SAMPLE
from benchmarks.ledger import Ledger
from benchmarks.registry import Absent, Case, Method, NotMeasured, Registry, Settings, Target
from linattn_core import registry as backends

PASSES = {False: "forward", True: "forward-and-backward"}
LENGTHS = tuple(2**power for power in range(9, 17))
POSITIONS, HEADS, WIDTH = 65_536, 64, 64
LONG, USUAL, FEW = 65_536, 4_096, 8
WIDTHS = (32, 128)
SCHEDULES = ((1, False), (4, False), (16, False), (64, False), (32, True), (128, True))  # relay?
QUICK_POSITIONS, QUICK_HEADS = 64, 2

SOFTMAX_BACKENDS = (
    SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
)  # fmt: skip
# The methods against the length, by pass: figure 1 of the paper has both passes and all rivals.
OURS_AND_PEERS = (LINEAR_CUDA, FLASH_LINEAR_ATTENTION, FAST_TRANSFORMERS, LINEAR)
ALL = {
    False: (*OURS_AND_PEERS, SDPA),
    True: (*OURS_AND_PEERS, "lsh-1", "lsh-4", MATERIALISED, SDPA),
}
# To reach, by pass: share of the copy bandwidth where sequences are this long and heads this many.
SHARE_OF_COPY = {False: 0.7, True: 0.5}
SHARE_FROM = 2_048
FASTER_THAN_PEER, FASTER_THAN_SOFTMAX_FROM, ALMOST = 10, 1_024, 1 / 1.1
RATE_OF_FEW_HEADS = 0.6


def register(registry: Registry) -> None:
    """Adds the cases, those that the most is promised of first."""
    for backward in PASSES:
        ledger = Ledger(memory_growth={MATERIALISED: 2})
        for length in LENGTHS:
            registry.add(_length_case(length, backward, ledger))
    for backward in PASSES:
        registry.add(_few_heads_case(backward))
    for heads in (FEW, HEADS):
        registry.add(_schedules_case(heads))
    for backward in PASSES:
        for width in WIDTHS:
            registry.add(_width_case(width, backward))
    for dtype in (torch.float32, torch.float16):
        for backward in PASSES:
            registry.add(_dtype_case(dtype, backward))


def many_heads(length: int, **fields: object) -> Problem:
    """As many positions at every length: the batch is what they leave."""
    usual = Problem(
        length, batch=POSITIONS // length, heads=HEADS, width=WIDTH, dtype=torch.bfloat16
    )
    return dataclasses.replace(usual, **fields)  # type: ignore[arg-type]


def scaled(problem: Problem, settings: Settings) -> Problem:
    """The problem on the device of the run, and tiny in a quick one."""
    problem = dataclasses.replace(problem, device=settings.device)
    if not settings.quick:
        return problem
    return dataclasses.replace(
        problem, length=min(problem.length, QUICK_POSITIONS), batch=1,
        heads=min(problem.heads, QUICK_HEADS), width=8,
    )  # fmt: skip


def entry(name: str, problem: Problem, backward: bool, settings: Settings) -> Method | Absent:
    """Returns the operator of that name on the run's device."""
    on, problem = instrument(settings.device), scaled(problem, settings)
    if name == SDPA:
        return placed(name, lambda: _fastest_softmax(problem, backward, on), on)
    if name == FAST_TRANSFORMERS and problem.dtype != torch.float32:
        # It knows no other; its bytes are counted as they are.
        single = dataclasses.replace(problem, dtype=torch.float32)
        made = placed(name, lambda: method(name, single, backward=backward, settings=settings), on)
        return dataclasses.replace(made, note="float32") if isinstance(made, Method) else made
    return placed(name, lambda: method(name, problem, backward=backward, settings=settings), on)


def _fastest_softmax(problem: Problem, backward: bool, on: Instrument) -> Method:
    """Softmax attention by whichever of torch's kernels is the fastest here."""
    timed: list[tuple[float, str, Method]] = []
    for backend in SOFTMAX_BACKENDS:
        made = _softmax(backend, problem, backward)
        assert made.run is not None
        with contextlib.suppress(NotMeasured):
            guarded(SDPA, made.run, on)
            seconds = on.seconds(made.run)
            name = backend.name.removesuffix("_ATTENTION").lower()
            timed.append((seconds, name, made))
            timed = [min(timed, key=lambda each: each[0])]  # the others' memory is let go
    if not timed:
        names = ", ".join(backend.name for backend in SOFTMAX_BACKENDS)
        raise NotMeasured(f"torch has none of {names} for these tensors")
    _, note, made = timed[0]
    return dataclasses.replace(made, note=note)


def _softmax(backend: SDPBackend, problem: Problem, backward: bool) -> Method:
    def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        # torch explains in warnings why a kernel does not take a call; the error says enough.
        with warnings.catch_warnings(), sdpa_kernel(backend):
            warnings.simplefilter("ignore")
            return F.scaled_dot_product_attention(query, key, value, is_causal=problem.causal)

    rows = functools.partial(oracle.softmax_rows, is_causal=problem.causal)
    operator = Attention(SDPA, call, rows, linear=False)
    return method_of(operator, problem, backward=backward)


def _entries(
    names: Sequence[str], problem: Problem, backward: bool, settings: Settings
) -> list[Method | Absent]:
    return [entry(name, problem, backward, settings) for name in names]


def _length_case(length: int, backward: bool, ledger: Ledger) -> Case:
    problem = many_heads(length)

    def setup(settings: Settings) -> list[Method | Absent]:
        batch = scaled(problem, settings).batch
        return [
            ledger.guarded(per_sample(made, batch), length, settings)
            for made in _entries(ALL[backward], problem, backward, settings)
        ]

    return Case(
        f"attention/length/{PASSES[backward]}/{length}",
        shows=f"Causal attention, {_words(backward)}, {size_words(problem)}.",
        setup=setup,
        targets=_length_targets(length, backward),
        unit=SAMPLE,
        seconds=1.5,
        rounds=(3, 20),
        series=f"causal {_words(backward)}, {HEADS} heads, B N = {POSITIONS:,}, bfloat16, "
        "per sample",
        at=length,
        done=ledger.note,
    )


def _length_targets(length: int, backward: bool) -> tuple[Target, ...]:
    targets = []
    if length >= SHARE_FROM:
        targets.append(_share_of_copy(backward))
    targets.append(Target.faster(LINEAR_CUDA, FLASH_LINEAR_ATTENTION, 1))
    targets.append(Target.faster(LINEAR_CUDA, FAST_TRANSFORMERS, FASTER_THAN_PEER))
    if not backward:
        least = 1 if length >= FASTER_THAN_SOFTMAX_FROM else ALMOST
        targets.append(Target.faster(LINEAR_CUDA, SDPA, least))
    return tuple(targets)


def _share_of_copy(backward: bool) -> Target:
    shows = f"{LINEAR_CUDA}: share of the copy bandwidth"
    return Target(shows, LINEAR_CUDA, at_least=SHARE_OF_COPY[backward], of_copy=True)


def _few_heads_case(backward: bool) -> Case:
    def of_heads(heads: int) -> str:
        return f"{LINEAR_CUDA}, {heads} head{'s' if heads > 1 else ''}"

    def setup(settings: Settings) -> list[Method | Absent]:
        made = []
        for heads in (HEADS, FEW, 1):
            problem = many_heads(LONG, heads=heads)
            found = entry(LINEAR_CUDA, problem, backward, settings)
            if isinstance(found, Method):
                found = dataclasses.replace(found, units=heads * LONG)
            made.append(dataclasses.replace(found, name=of_heads(heads)))
        return made

    target = Target(
        f"rate of {FEW} heads over that of {HEADS}", of_heads(HEADS), of_heads(FEW),
        at_least=RATE_OF_FEW_HEADS,
    )  # fmt: skip
    return Case(
        f"attention/few-heads/{PASSES[backward]}",
        shows=f"One sequence of N={LONG:,}, {_words(backward)}, with few heads and with many.",
        setup=setup,
        targets=(target,),
        unit="position and head",
        seconds=1.5,
        rounds=(3, 20),
    )


def _schedules_case(heads: int) -> Case:
    problem = many_heads(LONG, heads=heads)

    def setup(settings: Settings) -> list[Method | Absent]:
        return [_scheduled(schedule, problem, settings) for schedule in (None, *SCHEDULES)]

    return Case(
        f"attention/schedules/{heads}-heads",
        shows=f"Forward, {size_words(problem)}, cut into so many segments; 1 walks the sequence.",
        setup=setup,
        seconds=1.5,
        rounds=(3, 20),
    )


def _scheduled(
    schedule: tuple[int, bool] | None, problem: Problem, settings: Settings
) -> Method | Absent:
    name = "chosen by shape"
    if schedule is not None:
        name = f"segments: {schedule[0]}" + (", relay" if schedule[1] else "")
    on, size = instrument(settings.device), scaled(problem, settings)

    def make() -> Method:
        operator = attention(LINEAR_CUDA, size, settings)
        assert isinstance(operator, Attention)  # linear attention is one
        call = _with_schedule(operator.call, schedule)
        return method_of(dataclasses.replace(operator, call=call), size, backward=False)

    return placed(name, make, on)


def _with_schedule(
    call: Callable[..., torch.Tensor], schedule: tuple[int, bool] | None
) -> Callable[..., torch.Tensor]:
    def called(*tensors: torch.Tensor) -> torch.Tensor:
        with forced_schedule(backends.named("cuda"), schedule):
            return call(*tensors)

    return called


@contextlib.contextmanager
def forced_schedule(backend: object, schedule: tuple[int, bool] | None) -> Iterator[None]:
    """Has the backend take this schedule (segments, relay), and lets it choose again afterwards.

    Raises:
        NotMeasured: when it has no such choice.
    """
    if not hasattr(backend, "schedule"):
        raise NotMeasured("the backend does not let the schedule be chosen")
    before = backend.schedule
    backend.schedule = schedule
    try:
        yield
    finally:
        backend.schedule = before


def _width_case(width: int, backward: bool) -> Case:
    problem = many_heads(USUAL, width=width, heads=HEADS * WIDTH // width)
    names = (LINEAR_CUDA, FLASH_LINEAR_ATTENTION, LINEAR, SDPA)
    return Case(
        f"attention/width-{width}/{PASSES[backward]}",
        shows=f"Causal attention, {_words(backward)}, {size_words(problem)}.",
        setup=lambda settings: _entries(names, problem, backward, settings),
        targets=(Target.faster(LINEAR_CUDA, FLASH_LINEAR_ATTENTION, 1),),
        seconds=1.5,
        rounds=(3, 20),
    )


def _dtype_case(dtype: torch.dtype, backward: bool) -> Case:
    problem = many_heads(USUAL, dtype=dtype)
    single = dtype == torch.float32
    names = (LINEAR_CUDA, *((FAST_TRANSFORMERS,) if single else ()), LINEAR, SDPA)
    promised = Target.faster(LINEAR_CUDA, FAST_TRANSFORMERS, FASTER_THAN_PEER)
    return Case(
        f"attention/{dtype_name(dtype)}/{PASSES[backward]}",
        shows=f"Causal attention, {_words(backward)}, {size_words(problem)}.",
        setup=lambda settings: _entries(names, problem, backward, settings),
        targets=(promised,) if single else (),
        seconds=1.5,
        rounds=(3, 20),
    )


def _words(backward: bool) -> str:
    return PASSES[backward].replace("-", " ")


def size_words(problem: Problem) -> str:
    """The problem as documents name it."""
    return (
        f"N={problem.length:,} (B={problem.batch}, H={problem.heads}, D=M={problem.width}, "
        f"{dtype_name(problem.dtype)})"
    )


def dtype_name(dtype: torch.dtype) -> str:
    """Such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")
