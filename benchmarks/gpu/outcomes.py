"""A pytest plug-in that writes each test's outcome as it comes: `--outcomes FILE`.

A test run that is stopped, or that a kernel brings down, thus still says what it found.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

MESSAGE = 300  # characters


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--outcomes FILE`: where to write a line of JSON for each test that starts or ends."""
    parser.addoption("--outcomes", metavar="FILE", help="write each test's outcome as JSON lines")


def pytest_configure(config: pytest.Config) -> None:
    """Takes part where a file was named, and not in the workers of pytest-xdist."""
    path = config.getoption("--outcomes")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(Path(path)), "linattn-outcomes")


class _Writer:
    """Appends the lines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write({"test": nodeid, "outcome": "started"})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test that passes does so in its call; set-up and tear-down count when they fail or skip.
        if report.when == "call" or report.outcome != "passed":
            self._write(
                {"test": report.nodeid, "outcome": report.outcome, "message": _message(report)}
            )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(
                {
                    "test": report.nodeid,
                    "outcome": "failed",
                    "message": report.longreprtext[-MESSAGE:],
                }
            )

    def _write(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _message(report: pytest.TestReport) -> str:
    if not report.failed:
        return ""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(getattr(crash, "message", report.longreprtext))[:MESSAGE]
