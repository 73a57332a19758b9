"""What of the repository a measurement depends on."""

from __future__ import annotations

from pathlib import Path

import pytest

from replication.sources import digest, imported, meaning


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A package whose module `used` a script imports through the package; `unused` it does not."""
    for name, text in {
        "packages/linattn-x/src/linattn_x/__init__.py": (
            "from linattn_x.deep import used as handed_on\nfrom linattn_x.unused import other\n"
        ),
        "packages/linattn-x/src/linattn_x/deep/__init__.py": "from linattn_x.deep.of import used\n",
        "packages/linattn-x/src/linattn_x/deep/of.py": "import linattn_x.base\nused = 1\n",
        "packages/linattn-x/src/linattn_x/base.py": "import os\n",
        "packages/linattn-x/src/linattn_x/unused.py": "other = 1\n",
        "apps/a/run.py": "def main():\n    from linattn_x import handed_on\nimport beside\n",
        "apps/a/beside.py": "import numpy\nfrom beside import main\n",
        "tool/__init__.py": "from tool import part\n",
        "tool/__main__.py": "import tool\n",
        "tool/part.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def names(files: list[Path], root: Path) -> set[str]:
    return {file.relative_to(root).as_posix() for file in files}


def test_imports_are_followed_to_the_files_that_define_a_name(checkout: Path) -> None:
    files = imported(checkout / "apps" / "a" / "run.py", checkout)

    assert names(files, checkout) == {
        "apps/a/run.py",
        "apps/a/beside.py",
        "packages/linattn-x/src/linattn_x/deep/of.py",
        "packages/linattn-x/src/linattn_x/base.py",
    }


def test_a_module_starts_at_its_main(checkout: Path) -> None:
    expected = {"tool/__main__.py", "tool/__init__.py", "tool/part.py"}
    assert names(imported("tool", checkout), checkout) == expected
    assert names(imported("tool.part", checkout), checkout) == {"tool/part.py"}
    with pytest.raises(FileNotFoundError, match="no module absent"):
        imported("absent", checkout)


def test_the_speed_up_depends_on_generation_and_on_nothing_beside_it() -> None:
    followed = {file.name for file in imported("replication.speedup")}

    assert {"speedup.py", "cost.py", "generating.py", "functional.py", "machine.py"} <= followed
    assert not {"beam_search.py", "seq2seq.py", "equations.py"} & followed


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    (tmp_path / "part").mkdir()
    (tmp_path / "code.py").write_text("a = 1\n")
    (tmp_path / "part" / "more.cpp").write_text("int a;\n")
    return [tmp_path / "code.py", tmp_path / "part"]


def test_the_digest_follows_the_sources_alone(sources: list[Path], tmp_path: Path) -> None:
    before = digest(sources, tmp_path)
    (tmp_path / "other.py").write_text("a = 2\n")
    (tmp_path / "part" / "notes.md").write_text("of no effect\n")
    (tmp_path / "part" / "__pycache__").mkdir()
    (tmp_path / "part" / "__pycache__" / "more.py").write_text("a = 2\n")
    assert digest(sources, tmp_path) == before

    (tmp_path / "part" / "more.cpp").write_text("int b;\n")
    changed = digest(sources, tmp_path)
    assert changed != before
    (tmp_path / "part" / "more.cpp").rename(tmp_path / "part" / "renamed.cpp")
    assert digest(sources, tmp_path) not in (before, changed)


def test_a_source_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"absent\.py"):
        digest([tmp_path / "absent.py"], tmp_path)


@pytest.mark.parametrize(
    ("suffix", "text", "alike"),
    [
        (".py", '"""A module."""\na = "# 1"  # one\n', '"""Another."""\n# more\n\na = "# 1"\n'),
        (".py", 'def f():\n    """Of\n    two lines."""\n', 'def f():\n    """Of one."""\n'),
        (
            ".py",
            'class A:\n    """A."""\n\n    a: int\n',
            'class A:\n    """B."""\n    a: int  # c\n',
        ),
        (".cpp", 'int a;  // "one"\n', "int a; /* two\nlines */\n"),
        (".cuh", 'f("// no comment");\n', 'f("// no comment");  // a comment\n'),
    ],
)
def test_comments_and_docstrings_mean_nothing(suffix: str, text: str, alike: str) -> None:
    assert meaning(text, suffix) == meaning(alike, suffix)


@pytest.mark.parametrize(
    ("suffix", "text", "other"),
    [
        (".py", 'a = "# 1"\n', 'a = "# 2"\n'),
        (".py", "if a:\n    b()\nc()\n", "if a:\n    b()\n    c()\n"),
        (".py", 'def f():\n    """A."""\n    return 1\n', 'def f():\n    """A."""\n    return 2\n'),
        (".py", 'def f():\n    g("""A.""")\n', 'def f():\n    g("""B.""")\n'),
        (".cpp", 'f("// 1");\n', 'f("// 2");\n'),
        (".cpp", "#pragma unroll\nf();\n", "f();\n"),
        (".txt", "set(A 1)\n", "set(A 2)\n"),
    ],
)
def test_code_means_something(suffix: str, text: str, other: str) -> None:
    assert meaning(text, suffix) != meaning(other, suffix)
