"""The command: refusals in a sentence, a whole run on the CPU in its stead, the documents."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import build, document, session
from benchmarks.gpu.measure_records import write
from benchmarks.gpu.probe import Gpu
from benchmarks.gpu.session import Session
from benchmarks.gpu.stages import DONE, StageFailed, StageOutcome
from benchmarks.gpu.suite import SuiteOutcome
from benchmarks.machine import describe_machine
from benchmarks.records import case_record
from benchmarks.registry import Case, Method, Settings
from benchmarks.report import to_json, to_markdown
from benchmarks.runner import CaseResult, run_case

MakeCase = Callable[..., Case]
DAY = datetime.date(2026, 11, 21)
GREEN = SuiteOutcome("contract, cuda", "complete", passed=9, skipped=1, seconds=3.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_refuses_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("A GPU is needed and none was found: ")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_without_nvcc_it_refuses_in_one_sentence(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_gpu", lambda: gpu)
    monkeypatch.setattr(build, "find_nvcc", lambda: None)
    assert command.main(["--out", str(tmp_path)]) == 2
    assert "needs nvcc, and none is on PATH" in capsys.readouterr().err


def test_a_whole_run_with_the_cpu_in_its_stead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--device", "cpu", "--only", "attention/length/forward/512", "--out", str(tmp_path)]
    assert command.main([*words, "--commit", "abc1234"]) == 0
    names = {path.suffix: path.name for path in tmp_path.iterdir()}
    assert names == {
        suffix: names[".md"].replace(".md", suffix) for suffix in (".md", ".json", ".png")
    }
    record = json.loads((tmp_path / names[".json"]).read_text())
    assert record["complete"] is True
    assert record["machine"]["commit"] == "abc1234"
    assert record["limits"]["copy_bandwidth"] > 0
    (case,) = record["cases"]
    found = {method["name"]: method["status"] for method in case["methods"]}
    assert found["softmax SDPA"] == found["linear (torch)"] == "measured"
    text = (tmp_path / names[".md"]).read_text()
    assert text in capsys.readouterr().out
    assert "numbers mean nothing" in text
    assert str(tmp_path) not in text


def _session(gpu: Gpu, tmp_path: Path, **fields: Any) -> Session:
    made = Session(gpu, "nvcc", tmp_path / "out", tmp_path, **fields)
    made.run.date = DAY
    return made


def test_the_stages_fit_into_the_time(gpu: Gpu, tmp_path: Path) -> None:
    stages = _session(gpu, tmp_path).stages()
    assert [stage.name for stage in stages] == [
        "build", "contract, cuda", "contract, cupy", "tests marked gpu", "attention/", "decoding/",
    ]  # fmt: skip
    assert sum(stage.seconds for stage in stages) <= command.MINUTES * 60 - command.WRITING
    assert command.MINUTES <= 9


def test_nothing_is_tested_when_nothing_was_built(gpu: Gpu, tmp_path: Path) -> None:
    made = _session(gpu, tmp_path)
    made.run.stages.append(StageOutcome("build", "failed: no", 1))
    with pytest.raises(StageFailed, match="nothing to test"):
        made.stages()[1].run(10)


def test_documents_are_written_after_every_stage_under_one_name(gpu: Gpu, tmp_path: Path) -> None:
    made = _session(gpu, tmp_path)
    made.note(StageOutcome("build", "failed: nvcc said | no\nand more", 7.0))
    first = {path.name for path in (tmp_path / "out").iterdir()}
    assert first == {"2026-11-21-nvidia-h200.md", "2026-11-21-nvidia-h200.json"}
    text = (tmp_path / "out" / "2026-11-21-nvidia-h200.md").read_text()
    assert "| build | failed: nvcc said / no and more | 7 s | - |" in text
    assert "was stopped before its last case" in text
    assert "Limits: not measured." in text
    assert "580.1" in text
    assert made.finish() == 1
    assert {path.name for path in (tmp_path / "out").iterdir()} == first
    again = _session(gpu, tmp_path)
    assert again.write()[0].name == "2026-11-21-nvidia-h200-2.md"


def test_an_interrupted_run_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(session.family, "measure", stop)
    assert command.main(["--device", "cpu", "--out", str(tmp_path)]) == 1
    (path,) = tmp_path.glob("*.json")
    assert json.loads(path.read_text())["complete"] is False


def _result(case: Case, on: Any) -> CaseResult:
    return run_case(case, Settings(), limits=on.limits())


def _written(tmp_path: Path, on: Any, *results: CaseResult) -> list[Path]:
    records = tmp_path / "records"
    machine = dataclasses.asdict(describe_machine())
    write(records, {"limits": dataclasses.asdict(on.limits()), "machine": machine})
    for result in results:
        write(records, {"case": case_record(result)})
    return [records]


def _run(gpu: Gpu, *suites: SuiteOutcome) -> document.Run:
    stages = [StageOutcome("build", DONE, 60.0, "linattn-cuda for 90-real")]
    return document.Run(gpu, DAY, False, "abc1234", stages, list(suites), complete=True)


def test_the_document_shows_tests_and_their_failures(
    gpu: Gpu, new_instrument: Any, tmp_path: Path
) -> None:
    bad = SuiteOutcome(
        "contract, cupy", "pytest died by SIGSEGV", passed=1, failed=1, seconds=2.0,
        failures=(("tests/x.py::test_a", "assert 1 == 2\nmore"),),
        unfinished=("tests/x.py::test_b",),
    )  # fmt: skip
    run = _run(gpu, GREEN, bad)
    report = document.report(run, _written(tmp_path, new_instrument()))
    text = to_markdown(report)
    assert "| contract, cuda | 9 | 0 | 1 | 0 | complete |" in text
    assert "| contract, cupy | 1 | 1 | 0 | 1 | pytest died by SIGSEGV |" in text
    assert "- failed: `tests/x.py::test_a`: assert 1 == 2 more" in text
    assert "- unfinished: `tests/x.py::test_b`" in text
    assert "-W default" in text
    assert "abc1234" in text
    record = json.loads(to_json(report))
    assert record["tests"][1]["failures"] == [["tests/x.py::test_a", "assert 1 == 2\nmore"]]
    assert record["gpu"]["name"] == "NVIDIA H200"
    assert not run.good([])
    assert _run(gpu, GREEN).good([])
    assert not dataclasses.replace(_run(gpu, GREEN), complete=False).good([])


def test_a_method_that_is_wrong_or_of_ours_that_breaks_is_not_good(
    gpu: Gpu, make_case: MakeCase, new_instrument: Any
) -> None:
    result = _result(make_case({"linear (cuda)": 1.0}), new_instrument())
    assert _run(gpu, GREEN).good([result])
    (method,) = result.methods
    for status in ("not correct", "raised RuntimeError: x"):
        broken = dataclasses.replace(method, status=status, value=None)
        assert not _run(gpu, GREEN).good([dataclasses.replace(result, methods=(broken,))])


def test_the_document_shows_images_a_second_and_memory(
    gpu: Gpu, make_case: MakeCase, new_instrument: Any, tmp_path: Path
) -> None:
    on = new_instrument()

    def images(_: Settings) -> list[Any]:
        return [Method("fast", check=lambda: None, measure=lambda: 2.0, units=10_000)]

    def attention(_: Settings) -> list[Any]:
        return [
            Method(n, check=lambda: None, measure=lambda: 1.0, peak=lambda: 3.0 * 2**20, note=note)
            for n, note in (("ours", ""), ("theirs", "flash"))
        ]

    results = (
        _result(Case("decoding/x", "Images.", images, unit="image"), on),
        _result(Case("length/512", "Length.", attention, series="causal", at=512), on),
    )
    files = _written(tmp_path, on, *results)
    text = to_markdown(document.report(_run(gpu), files))
    assert "| decoding/x | fast | 5,000 | 2 s |" in text
    assert "| 512 | 3 MiB | 3 MiB |" in text
    assert "theirs [flash]" in text
    assert "Everything was measured." in text
