"""Who may import whom: the contracts of pyproject.toml, and what core imports."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import grimp
from importlinter.cli import lint_imports

MAY_IMPORT_IN_CORE = {"linattn_core", "torch"} | sys.stdlib_module_names
TRAINING = "linattn_models.training"


def test_contracts_hold(repository: Path) -> None:
    status = lint_imports(
        config_filename=str(repository / "pyproject.toml"), no_cache=True, no_logo=True
    )

    assert status == 0, "a contract is broken: run lint-imports for the whole report"


def test_core_imports_torch_and_the_standard_library_only() -> None:
    graph = grimp.build_graph("linattn_core", include_external_packages=True, cache_dir=None)

    packages = {module.split(".")[0] for module in graph.modules}

    assert "torch" in packages
    assert packages - MAY_IMPORT_IN_CORE == set()


def test_nothing_imports_an_application(repository: Path) -> None:
    scripts = {script.stem for script in repository.glob("apps/*/*.py")}
    packages = {file.parent.name for file in repository.glob("apps/*/*/__init__.py")}
    names = {"apps", "replication"} | scripts | packages
    graph = grimp.build_graph(
        "linattn_core", "linattn_cpu", "linattn_cuda", "linattn_triton", "linattn_models",
        "linattn_lab", "benchmarks", include_external_packages=True, cache_dir=None,
    )  # fmt: skip

    assert {"train"} < scripts and {"pixels", "speech"} < packages
    assert {module for module in graph.modules if module.split(".")[0] in names} == set()


def test_programs_import_nothing_from_inside_training(repository: Path) -> None:
    """What an application needs of the training library is exported."""
    imported = {
        (str(file.relative_to(repository)), node.module)
        for folder in ("apps", "benchmarks", "replication")
        for file in repository.glob(f"{folder}/**/*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(TRAINING)
    }

    assert ("apps/ctc_speech/speech/training.py", TRAINING) in imported
    assert [each for each in sorted(imported) if each[1] != TRAINING] == []
