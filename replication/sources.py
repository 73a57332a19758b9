"""What of this repository a command runs: the files that it imports, and a hash of what they say.

Imports are read from the files, which are not run. A name that a package hands on is followed to
the module that defines it, so that a change elsewhere in the package does not count. Comments,
docstrings and blank lines do not count either.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import tokenize
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SUFFIXES = frozenset({".py", ".cpp", ".hpp", ".h", ".cu", ".cuh", ".txt", ".cmake"})
IGNORED = frozenset({"__pycache__", "build", "runs"})
# A string or a comment of C++: comments inside strings are none.
_CPP = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def imported(start: str | Path, root: Path = ROOT) -> list[Path]:
    """The files of this repository that a module (by its name) or a script (by its path) imports.

    Raises:
        FileNotFoundError: this repository has no such module.
    """
    script = start if isinstance(start, Path) else None
    folders = [*root.glob("packages/*/src"), *([script.parent] if script else []), root]
    modules = _Modules(tuple(folders))
    first = script or modules.file(f"{start}.__main__") or modules.file(str(start))
    if first is None or not first.is_file():
        raise FileNotFoundError(f"no module {start} in {', '.join(map(str, folders))}")
    reached, ahead = {first}, [first]
    while ahead:
        found = set(modules.imported_by(ahead.pop())) - reached
        reached |= found
        ahead += found
    return sorted(reached)


class _Modules:
    """The modules in some folders."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self.folders = folders

    def file(self, module: str) -> Path | None:
        """Where a module is; None for one that is in none of the folders."""
        inner = module.replace(".", "/")
        places = (
            folder / x for folder in self.folders for x in (f"{inner}.py", f"{inner}/__init__.py")
        )
        return next((place for place in places if place.is_file()), None)

    def imported_by(self, file: Path) -> Iterator[Path]:
        """The files that define what a file imports."""
        for node in ast.walk(_parsed(file.read_bytes())):
            if isinstance(node, ast.Import):
                yield from filter(None, (self.file(name.name) for name in node.names))
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield from filter(None, (self.defining(node.module, x.name) for x in node.names))

    def defining(self, module: str, name: str) -> Path | None:
        """The file that defines a name of a module, or is the submodule of this name."""
        file = self.file(module)
        if file is None or file.name != "__init__.py":
            return file
        for node in _parsed(file.read_bytes()).body:
            if isinstance(node, ast.ImportFrom) and node.module not in (None, module):
                for each in node.names:
                    if name == (each.asname or each.name):
                        return self.defining(str(node.module), each.name)
        return self.file(f"{module}.{name}") or file


@cache
def _parsed(source: bytes) -> ast.Module:
    return ast.parse(source)


def digest(sources: Sequence[Path], root: Path = ROOT, command: str = "") -> str:
    """SHA-256 of a command, and of the names of source files, in files and folders, and their text.

    Raises:
        OSError: there is no such file or folder.
    """
    total = hashlib.sha256(command.encode())
    for file in sorted({file for source in sources for file in files_of(source)}):
        content = meaning(file.read_text(encoding="utf-8"), file.suffix).encode()
        name = Path(os.path.relpath(file, root)).as_posix()
        total.update(f"{name} {len(content)}\n".encode() + content)
    return total.hexdigest()


def files_of(source: Path) -> list[Path]:
    """The source files of a folder, or this one file."""
    if not source.is_dir():
        return [source]
    files = (file for file in source.rglob("*") if file.suffix in SUFFIXES)
    return [file for file in files if not IGNORED & set(file.relative_to(source).parts)]


@cache
def meaning(text: str, suffix: str) -> str:
    """A source file's text without comments, docstrings and blank lines."""
    if suffix == ".py":
        text = _without_comments(_without_docstrings(text))
    elif suffix not in (".txt", ".cmake"):
        text = _CPP.sub(lambda part: part[0] if part[0][0] == '"' else " ", text)
    lines = (line.rstrip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


def _without_docstrings(text: str) -> str:
    """Python with an empty docstring in the place of each: it may be all that a body has."""
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            start, end = first.lineno - 1, first.end_lineno or first.lineno
            lines[start:end] = [" " * first.col_offset + '""', *[""] * (end - start - 1)]
    return "\n".join(lines)


def _without_comments(text: str) -> str:
    lines = text.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return "\n".join(lines)
