"""Every package has its own files, one version for all, and everything pinned."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement


@pytest.fixture(scope="module")
def projects(packages: list[Path]) -> dict[str, dict[str, Any]]:
    """The [project] table of each package, by its folder's name."""
    tables = {
        folder.name: tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for folder in packages
    }
    for name, project in tables.items():
        if "dependencies" in project.get("dynamic", ()):
            project["dependencies"] = importlib.metadata.requires(name)
    return tables


@pytest.fixture(scope="module")
def pins(repository: Path) -> dict[str, str]:
    """The pinned version of each distribution in constraints.txt."""
    lines = (repository / "constraints.txt").read_text().splitlines()
    entries = [line for line in lines if line and not line.startswith("#")]
    return dict(entry.split("==") for entry in entries)


def test_every_package_has_a_readme_a_license_and_types(
    packages: list[Path], repository: Path
) -> None:
    text = (repository / "LICENSE").read_text()
    for folder in packages:
        module = folder.name.replace("-", "_")
        assert (folder / "README.md").is_file(), folder.name
        assert (folder / "src" / module / "py.typed").is_file(), folder.name
        assert (folder / "LICENSE").read_text() == text, folder.name


def test_one_version_for_all(projects: dict[str, dict[str, Any]], pins: dict[str, str]) -> None:
    versions = {name: project["version"] for name, project in projects.items()}

    assert len(set(versions.values())) == 1, versions
    assert {name: pins[name] for name in versions} == versions
    assert {name: importlib.metadata.version(name) for name in versions} == versions


def test_packages_require_one_another_in_lockstep(projects: dict[str, dict[str, Any]]) -> None:
    for name, project in projects.items():
        for requirement in requirements(project):
            if requirement.name in projects:
                locked = f"=={projects[requirement.name]['version']}"
                assert str(requirement.specifier) == locked, (name, str(requirement))


def test_nox_knows_every_package(projects: dict[str, dict[str, Any]], repository: Path) -> None:
    named = re.findall(r'Package\("([\w-]+)"', (repository / "noxfile.py").read_text())

    assert sorted(named) == sorted(projects)


def test_what_packages_and_apps_require_is_pinned(
    projects: dict[str, dict[str, Any]], pins: dict[str, str], repository: Path
) -> None:
    required = [item for project in projects.values() for item in requirements(project)]
    for file in repository.glob("apps/*/requirements*.txt"):
        lines = file.read_text().splitlines()
        required += [Requirement(line) for line in lines if line and not line.startswith("#")]

    assert {item.name for item in required} - set(pins) == set()
    for item in required:
        assert item.specifier.contains(pins[item.name]), str(item)


def requirements(project: dict[str, Any]) -> list[Requirement]:
    """What a package requires, its extras included."""
    extras = project.get("optional-dependencies", {}).values()
    lines = [*project.get("dependencies", []), *(line for extra in extras for line in extra)]
    return [Requirement(line) for line in lines]


def test_the_oldest_torch_is_the_one_that_compat_runs(
    projects: dict[str, dict[str, Any]], repository: Path
) -> None:
    tested = re.search(r'^OLDEST_TORCH = "(.+)"', (repository / "noxfile.py").read_text(), re.M)

    assert tested
    # Of linattn-triton, the first that brings the triton that it needs.
    others = {"linattn": [], "linattn-triton": [">=2.10"]}
    for name, project in projects.items():
        torch = [str(item.specifier) for item in requirements(project) if item.name == "torch"]
        assert torch == others.get(name, [f">={tested[1]}"]), name
