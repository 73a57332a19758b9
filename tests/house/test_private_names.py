"""Few modules use private names of other libraries; their tests fail if a release changes them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDERS = ("packages/", "apps/", "benchmarks/", "replication/")
# By module, the tests that need what its private names do.
TESTED_BY = {
    "linattn_core/torch_private.py": "tests/core/test_torch_private.py",
    "linattn_models/training/runtime.py": "tests/training/test_train.py",  # two precisions
    "linattn_models/huggingface/conversion.py": "tests/models/huggingface/test_conversion.py",
    "linattn_models/huggingface/converted.py": "tests/models/huggingface/test_conversion.py",
    "linattn_models/huggingface/model.py": "tests/models/huggingface/test_model.py",
    "linattn_models/weights/hooks.py": "tests/models/decoding/test_native_decoder.py",
    "linattn_models/weights/fingerprint.py": "tests/models/weights/test_weights_record.py",
    "linattn_models/huggingface/support.py": "tests/models/huggingface/test_interface.py",
    "linattn_models/huggingface/translation.py": "tests/models/huggingface/test_translation.py",
}
# Documented by Python in spite of the underscore.
DOCUMENTED = {"_asdict", "_exit", "_fields", "_replace"}


@pytest.fixture(scope="module")
def modules(repository: Path, tracked_files: list[Path]) -> dict[str, ast.Module]:
    """The syntax trees, by path; in packages by the path from `src` on."""
    paths = {file: file.relative_to(repository).as_posix() for file in tracked_files}
    return {
        path.rpartition("/src/")[2]: ast.parse(file.read_text("utf-8"))
        for file, path in paths.items()
        if path.startswith(FOLDERS) and path.endswith(".py")
    }


def test_private_names_stand_where_they_are_tested(
    modules: dict[str, ast.Module], repository: Path
) -> None:
    own = DOCUMENTED.union(*map(defined, modules.values()))
    own |= {part for name in modules for part in name.split("/")}  # packages
    users = {name for name, tree in modules.items() if set(private(tree, own))}

    assert users == set(TESTED_BY)
    assert [test for test in TESTED_BY.values() if not (repository / test).is_file()] == []


def defined(tree: ast.Module) -> set[str]:
    """The names that a module gives to functions, classes, variables and attributes of `self`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and is_set_on_self(node):
            names.add(node.attr)
    return names


def is_set_on_self(node: ast.Attribute) -> bool:
    """Whether it is an assignment to an attribute of `self`."""
    return isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"


def private(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """The private attributes and imports of a module that are not `own` names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            yield node.attr
        elif isinstance(node, ast.Import | ast.ImportFrom):
            package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for name in (f"{package}{alias.name}" for alias in node.names):
                parts = name.split(".")
                if parts[0] not in own and any(map(is_private, parts)):
                    yield name


def is_private(name: str) -> bool:
    """Whether the name begins with a single underscore."""
    return name.startswith("_") and not name.startswith("__")
