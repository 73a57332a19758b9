"""No module imports, however many steps away, a module that imports it."""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import grimp
import pytest

PACKAGES = (
    "linattn_core", "linattn_cpu", "linattn_cuda", "linattn_triton", "linattn_models",
    "linattn_lab", "benchmarks", "replication",
)  # fmt: skip
APPS = Path(__file__).parents[2] / "apps"
APPLICATIONS = sorted(file.parent.name for file in APPS.glob("*/*/__init__.py"))


@pytest.mark.parametrize("package", [*PACKAGES, *APPLICATIONS])
def test_no_circle(package: str) -> None:
    # Imports under TYPE_CHECKING count: two modules that name each other's types are one.
    graph = grimp.build_graph(package, cache_dir=None, exclude_type_checking_imports=False)
    # A compiled module is not in the graph: importing it looks like importing its own package.
    imports = {
        module: graph.find_modules_directly_imported_by(module) - {module}
        for module in graph.modules
    }

    assert len(imports) > 1
    assert circle(imports) == []


def test_a_circle_would_be_found() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def circle(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """The modules of one circle, in the order in which they import one another; [] if none."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []
