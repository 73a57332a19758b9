"""One run on a GPU: its stages, and its documents, which are written again after every stage."""

from __future__ import annotations

import datetime
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import figure
from benchmarks.gpu import build, family, suite
from benchmarks.gpu.document import Run, report, results_of
from benchmarks.gpu.probe import Gpu
from benchmarks.gpu.stages import DONE, Stage, StageFailed, StageOutcome
from benchmarks.report import free_name, write
from benchmarks.runner import CaseResult

BUILD = "build"
BUILD_SECONDS, MOST_BUILD_SECONDS = 110.0, 300.0
FAMILIES = {"attention/": 135.0, "decoding/": 115.0}  # what the cases of these names need


class Session:
    """What is shared by the stages.

    Args:
        nvcc: None builds nothing and tests nothing: the CPU stands in for the GPU.
        out: the folder of the documents.
        scratch: a folder for what is built and for records.
        only: measure the cases whose name contains this, not all.
        tests: run the tests too.
    """

    def __init__(
        self,
        gpu: Gpu,
        nvcc: str | None,
        out: Path,
        scratch: Path,
        *,
        quick: bool = False,
        commit: str = "",
        only: str | None = None,
        tests: bool = True,
    ) -> None:
        self.run = Run(gpu, datetime.datetime.now(tz=datetime.UTC).date(), quick, commit)
        self.nvcc, self.out, self.scratch = nvcc, out, scratch
        self.families = FAMILIES if only is None else {only: sum(FAMILIES.values())}
        self.tests = tests
        self.site = scratch / "site"
        self._name: str | None = None

    def stages(self) -> list[Stage]:
        """Returns what is to be done, in order."""
        stages = []
        if self.nvcc is not None:
            stages.append(Stage(BUILD, BUILD_SECONDS, self._build, MOST_BUILD_SECONDS))
        if self.nvcc is not None and self.tests:
            stages += [
                Stage(each.name, each.seconds, functools.partial(self._test, each))
                for each in suite.suites(build.ROOT)
            ]
        return stages + [
            Stage(only, seconds, functools.partial(self._measure, only))
            for only, seconds in self.families.items()
        ]

    def note(self, outcome: StageOutcome) -> None:
        """Keeps what became of a stage, and writes down all that is known."""
        self.run.stages.append(outcome)
        self.write()

    def write(self) -> tuple[Path, Path]:
        """Writes the documents of what is known so far, always under one name."""
        made = report(self.run, self._records())
        self._name = self._name or free_name(self.out, made.name)
        return write(made, self.out, self._name)

    def finish(self) -> int:
        """Writes the documents and the picture for the last time; returns the exit code."""
        paths: list[Path] = list(self.write())
        picture = paths[0].with_suffix(".png")
        reason = figure.draw(self.results(), picture)
        paths += [] if reason else [picture]
        print(paths[0].read_text(encoding="utf-8"))
        print("\n".join(f"written: {path}" for path in paths))
        if reason:
            print(f"no picture of figure 1: {reason}", file=sys.stderr)
        return int(not self.run.good(self.results()))

    def results(self) -> Sequence[CaseResult]:
        """Returns what was measured so far."""
        return results_of(self._records())

    def _records(self) -> list[Path]:
        return [self.scratch / "records.jsonl"]

    @functools.cached_property
    def _environment(self) -> dict[str, str]:
        return build.environment(self.site)

    def _build(self, seconds: float) -> str:
        assert self.nvcc is not None
        return build.build(self.site, self.run.gpu.architecture, self.nvcc, seconds)

    def _test(self, tests: suite.Suite, seconds: float) -> str:
        if not any(stage.name == BUILD and stage.status == DONE for stage in self.run.stages):
            raise StageFailed("there is nothing to test, as the build failed")
        outcome = suite.run(
            tests, seconds, root=build.ROOT, environment=self._environment, scratch=self.scratch
        )
        self.run.suites.append(outcome)
        return f"{outcome.passed} passed, {outcome.failed} failed, {outcome.skipped} skipped"

    def _measure(self, only: str, seconds: float) -> str:
        (records,) = self._records()
        return family.measure(
            only, records, seconds, folder=build.ROOT, environment=self._environment,
            device="cuda" if self.nvcc is not None else "cpu", quick=self.run.quick,
        )  # fmt: skip
