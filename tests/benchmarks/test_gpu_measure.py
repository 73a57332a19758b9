"""What a method raises is its row; a process that dies costs one case; records read back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import family, measure
from benchmarks.gpu import instrument as instruments
from benchmarks.gpu.child import Ended
from benchmarks.gpu.measure_records import LOST, done_cases, read, write
from benchmarks.gpu.placed import DeviceLost, placed
from benchmarks.records import case_record, result_of, unmeasured
from benchmarks.registry import Absent, Case, Method, NotMeasured, Registry, Settings, Target
from benchmarks.runner import CaseResult, run_case

MakeCase = Callable[..., Case]


def _raising(error: Exception) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        raise error

    return call


def _method(run: Callable[[], object], **fields: Any) -> Method:
    return Method("a", check=lambda: None, run=run, **fields)


def _run(case: Case, on: Any) -> CaseResult:
    return run_case(case, Settings(), limits=on.limits())


def test_a_method_is_timed_and_its_memory_taken_by_the_instrument(new_instrument: Any) -> None:
    on = new_instrument()
    made = placed("b", lambda: _method(lambda: None, operations=1e9, traffic=5e7), on)
    case = Case("a", "One.", lambda _: [made], rounds=(1, 1))
    found = _run(case, on).method("b")
    assert found.samples == (1.0,)
    assert found.peak == 1.0
    assert found.share_of_gemm is not None
    assert found.share_of_gemm.median == 0.25  # of the bfloat16 rate
    assert found.share_of_copy is not None
    assert found.share_of_copy.median == 0.5


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "does not fit in the GPU's memory"),
        (ValueError("it refuses:\nmore"), "raised ValueError: it refuses:"),
        (NotMeasured("not installed"), "not installed"),
        (
            ValueError("backend 'cuda' refuses this call: no GPU."),
            "ValueError: backend 'cuda' refuses this call: no GPU.",
        ),
    ],
)
@pytest.mark.parametrize("where", ["setup", "check", "run"])
def test_what_a_method_raises_is_its_row(
    error: Exception, words: str, where: str, new_instrument: Any
) -> None:
    on, raising = new_instrument(), _raising(error)
    made = {
        "setup": lambda: placed("a", raising, on),
        "check": lambda: placed("a", lambda: Method("a", check=raising, run=list), on),
        "run": lambda: placed("a", lambda: _method(raising), on),
    }[where]()
    found = _run(Case("a", "One.", lambda _: [made]), on).method("a")
    assert (found.status, found.value) == (words, None)


def test_a_kernel_that_leaves_the_gpu_unusable_ends_the_process(new_instrument: Any) -> None:
    on = new_instrument(dies=True)
    with pytest.raises(DeviceLost, match="a left the GPU unusable: RuntimeError: illegal"):
        placed("a", _raising(RuntimeError("illegal memory access")), on)


def test_an_absent_method_stays_so(new_instrument: Any) -> None:
    assert placed("a", lambda: Absent("b", "gone"), new_instrument()) == Absent("a", "gone")


def test_memory_that_cannot_be_taken_is_none() -> None:
    made = placed("a", lambda: _method(lambda: None), instruments.CpuInstrument())
    found = _run(Case("a", "One.", lambda _: [made], rounds=(1, 1)), instruments.CpuInstrument())
    assert found.method("a").status == "measured"
    assert found.method("a").peak is None


def _registry(*cases: Case) -> Registry:
    registry = Registry()
    for case in cases:
        registry.add(case)
    return registry


@pytest.fixture
def on(new_instrument: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = new_instrument()
    monkeypatch.setattr(measure, "instrument", lambda device: made)
    return made


def _measure(records: Path, registry: Registry, seconds: float = 60) -> int:
    words = ["--records", str(records), "--seconds", str(seconds), "--device", "cpu", "--quick"]
    return measure.main(words, registry)


def _statuses(records: Path) -> dict[str, str]:
    found = [result_of(record["case"]) for record in read(records) if "case" in record]
    return {result.case.name: result.methods[0].status for result in found}


def test_results_and_limits_are_written(
    on: Any, make_case: MakeCase, twice_as_fast: Target, tmp_path: Path
) -> None:
    records = tmp_path / "records"
    case = make_case({"slow": 4.0, "fast": 2.0}, targets=(twice_as_fast,), series="s", at=3)
    assert _measure(records, _registry(case)) == 0
    first, *_, last = read(records)
    assert first["limits"]["copy_bandwidth"] == 1e8
    found = result_of(last["case"])
    assert found.ratio("slow", "fast") == found.targets[0].value
    assert (found.case.series, found.case.at) == ("s", 3)
    assert json.loads(json.dumps(case_record(found))) == last["case"]


def test_a_case_that_breaks_leaves_the_others(on: Any, make_case: MakeCase, tmp_path: Path) -> None:
    broken = Case("broken", "Breaks.", _raising(KeyError("x")))
    assert _measure(tmp_path / "r", _registry(broken, make_case({"a": 1.0}))) == 0
    assert _statuses(tmp_path / "r") == {
        "broken": "not measured: KeyError: 'x'", "fixed/case": "measured",
    }  # fmt: skip


def test_what_no_time_is_left_for_says_so(on: Any, make_case: MakeCase, tmp_path: Path) -> None:
    assert _measure(tmp_path / "r", _registry(make_case({"a": 1.0})), seconds=0) == 0
    assert _statuses(tmp_path / "r") == {"fixed/case": measure.NO_TIME}


def test_a_fresh_process_goes_on_behind_the_case_that_lost_the_gpu(
    on: Any, make_case: MakeCase, tmp_path: Path
) -> None:
    lost = Case("lost", "Lost.", _raising(DeviceLost("a left the GPU unusable: x")))
    registry = _registry(lost, make_case({"a": 1.0}))
    assert _measure(tmp_path / "r", registry) == LOST
    assert _measure(tmp_path / "r", registry) == 0
    assert _statuses(tmp_path / "r") == {
        "lost": "not measured: a left the GPU unusable: x", "fixed/case": "measured",
    }  # fmt: skip
    assert sum("limits" in record for record in read(tmp_path / "r")) == 1


def test_a_case_without_result_names_the_methods_that_it_promised(twice_as_fast: Target) -> None:
    case = Case("a", "A.", _raising(KeyError()), targets=(twice_as_fast,), series="s", at=1)
    found = unmeasured(case, "gone")
    assert [(method.name, method.status) for method in found.methods] == [
        ("slow", "gone"), ("fast", "gone"),
    ]  # fmt: skip
    assert found.targets[0].reached is None
    assert found.case.series is None
    bare = unmeasured(dataclasses.replace(case, targets=()), "gone")
    assert [method.name for method in bare.methods] == ["every method"]


def test_a_record_that_was_cut_off_is_none(tmp_path: Path) -> None:
    records = tmp_path / "r"
    write(records, {"limits": 1})
    with records.open("a") as file:
        file.write(json.dumps({"case": {}})[:5])
    assert read(records) == [{"limits": 1}]
    assert read(tmp_path / "none") == []


def _began(records: Path, name: str) -> None:
    case = Case(name, "A.", _raising(KeyError()))
    write(records, {"began": case_record(unmeasured(case, "?"))})


def _finished(records: Path, name: str) -> None:
    case = Case(name, "A.", _raising(KeyError()))
    write(records, {"case": case_record(unmeasured(case, "measured"))})


def test_a_process_that_dies_costs_one_case(tmp_path: Path) -> None:
    records = tmp_path / "r"
    ends = iter([Ended(-11, "Fatal\nin kernel", 1, timed_out=False), Ended(0, "", 1, False)])

    def start(_: float) -> Ended:
        name = "second" if read(records) else "first"
        _began(records, name)
        if name == "second":
            _finished(records, name)
        return next(ends)

    assert family.attend(start, records, 60) == "a process died by SIGSEGV: in kernel"
    assert _statuses(records) == {
        "first": "not measured: its process died by SIGSEGV: in kernel", "second": "measured",
    }  # fmt: skip
    assert done_cases(read(records)) == {"first", "second"}


def test_a_process_that_gets_nowhere_is_not_started_again(tmp_path: Path) -> None:
    starts: list[float] = []

    def start(seconds: float) -> Ended:
        starts.append(seconds)
        return Ended(1, "ModuleNotFoundError: torch", 1, timed_out=False)

    remark = family.attend(start, tmp_path / "r", 60)
    assert len(starts) == 1
    assert remark == "a process ended with exit code 1: ModuleNotFoundError: torch"


def test_nothing_is_started_when_the_time_is_over(tmp_path: Path) -> None:
    def start(_: float) -> Ended:
        _began(tmp_path / "r", "a")
        return Ended(-9, "", 1, timed_out=True)

    family.attend(start, tmp_path / "r", family.FEWEST_SECONDS / 2)
    assert "stopped after 1 s" in _statuses(tmp_path / "r")["a"]
