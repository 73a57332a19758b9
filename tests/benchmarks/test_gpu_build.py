"""The build uses the source tree alone, for one architecture, and says what the compiler said."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks import machine
from benchmarks.gpu import build, probe
from benchmarks.gpu.stages import StageFailed


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with a pure package and a compiled one."""
    for name in ("linattn-core", "linattn-cuda"):
        (tmp_path / "packages" / name / "src").mkdir(parents=True)
    for name in ("CMakeLists.txt", "pyproject.toml"):
        (tmp_path / "packages" / "linattn-cuda" / name).touch()
    return tmp_path


def test_pip_is_given_no_index_and_one_architecture(tmp_path: Path) -> None:
    words = build.command(tmp_path, "90-real")
    assert {"--no-index", "--no-deps", "--no-build-isolation"} <= set(words)
    assert "cmake.define.CMAKE_CUDA_ARCHITECTURES=90-real" in words
    assert words[words.index("--target") + 1] == str(tmp_path)


def test_the_build_comes_before_the_sources(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "given")
    found = build.environment(tree / "site", tree)["PYTHONPATH"].split(os.pathsep)
    core = tree / "packages" / "linattn-core" / "src"
    assert found == [str(tree / "site"), str(tree), str(core), "given"]


def test_the_pure_packages_of_this_tree_are_found() -> None:
    names = {path.parent.name for path in build.source_folders()}
    assert {"linattn-core", "linattn-models"} <= names
    assert not {"linattn-cpu", "linattn-cuda"} & names


def test_a_build_that_fails_shows_the_end_of_its_output(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import os, sys; print('by', os.environ['CUDACXX']); sys.exit(1)"
    monkeypatch.setattr(build, "command", lambda *_: [sys.executable, "-c", program])
    with pytest.raises(StageFailed, match=r"the build ended with exit code 1:\nby my-nvcc"):
        build.build(tree / "site", "90-real", "my-nvcc", 60, tree)


def test_a_build_says_what_it_built(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "command", lambda *_: [sys.executable, "-c", ""])
    monkeypatch.setattr(build, "nvcc_version", lambda _: "13.0")
    words = build.build(tree / "site", "90-real", "my-nvcc", 60, tree)
    assert words == "linattn-cuda for 90-real by nvcc 13.0"


def test_a_tree_without_the_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match="linattn-cuda is not in this source tree"):
        build.build(tmp_path / "site", "90-real", "nvcc", 60, tmp_path)


def test_packages_that_are_on_the_path_alone_say_so() -> None:
    found = machine.describe_machine(("benchmarks", "no-such-package", "linattn-core")).packages
    assert found["benchmarks"] == "from its sources"
    assert found["no-such-package"] == "not installed"
    assert found["linattn-core"][0].isdigit()


def test_the_version_of_nvcc_is_read(tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.48'\n")
    nvcc.chmod(0o755)
    assert build.nvcc_version(str(nvcc)) == "13.0"


def test_a_gpu_has_a_name_for_files_and_an_architecture(gpu: probe.Gpu) -> None:
    assert gpu.slug == "nvidia-h200"
    assert gpu.architecture == "90-real"
    assert probe.Gpu("A (B) 40", "12.0", 1, 1.0, 0, "", "").architecture == "120-real"
    for word in ("NVIDIA H200", "132 multiprocessors", "driver 580.1", "CUDA 13.0", "L2 60 MiB"):
        assert word in gpu.description
