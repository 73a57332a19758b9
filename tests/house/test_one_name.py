"""What `pip install ./packages/linattn` installs, as `pip install .` does."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from packaging.requirements import Requirement

import linattn


def read_requirements(folder: Path) -> list[Requirement]:
    core = ProjectMetadata(str(folder), PluginManager()).core
    extras = (line for lines in core.optional_dependencies.values() for line in lines)
    return [Requirement(line) for line in (*core.dependencies, *extras)]


def test_a_checkout_requires_its_own_folders(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LINATTN_RELEASE", raising=False)

    for item in read_requirements(repository / "packages/linattn"):
        # pip caches wheels of links whose last part looks like a name and a version.
        assert item.url == (repository / "packages" / item.name).as_uri() + "/."


@pytest.mark.parametrize("alone", [True, False])
def test_a_release_requires_versions(
    alone: bool, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINATTN_RELEASE", "" if alone else "1")
    folder = repository / "packages/linattn"
    if alone:
        folder = shutil.copytree(folder, tmp_path / "linattn")

    for item in read_requirements(folder):
        assert item.url is None
        assert str(item.specifier) == f"=={linattn.__version__}"


def test_names_are_those_of_the_packages() -> None:
    parts = [importlib.import_module(name) for name in ("linattn_core", "linattn_models")]

    for name in linattn.__all__:
        assert any(getattr(linattn, name) is getattr(part, name, None) for part in parts), name
    assert len({*linattn.__all__}) == len(linattn.__all__)


def test_nothing_that_has_to_be_compiled_is_required(repository: Path) -> None:
    core = ProjectMetadata(str(repository / "packages/linattn"), PluginManager()).core

    assert {Requirement(line).name for line in core.dependencies} == {
        "linattn-core",
        "linattn-models",
    }


def test_the_root_builds_the_same_package(repository: Path, tmp_path: Path) -> None:
    """For `pip install .`."""
    program = f"import root_backend; root_backend.build_wheel({str(tmp_path)!r})"
    path = str(repository / "packages")
    subprocess.run(
        [sys.executable, "-c", program], cwd=repository, env={**os.environ, "PYTHONPATH": path},
        check=True,
    )  # fmt: skip
    (wheel,) = tmp_path.iterdir()
    assert wheel.name == f"linattn-{linattn.__version__}-py3-none-any.whl"


def test_the_page_of_names_has_each_name_once(repository: Path) -> None:
    rows = re.findall(r"^\| (`.+?) \|", (repository / "docs/names.md").read_text(), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]

    for module in (name for name in named if "." in name):
        assert importlib.util.find_spec(module), module
    assert sorted(name for name in named if "." not in name) == sorted(linattn.__all__)
