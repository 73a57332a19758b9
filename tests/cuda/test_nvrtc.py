"""Kernels compiled by NVRTC: kept on disk, and the same machine code as nvcc's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import linattn_cuda._native as native
from linattn_cuda import compiling, nvrtc
from linattn_cuda.device import Code
from tests.cuda.compilers import kernels_by_nvcc, kernels_by_nvrtc
from tests.cuda.emulated_build import ROOT, driver_module
from tests.cuda.machine_code import MOST_SPILLED, Kernel, architectures

needs_nvrtc = pytest.mark.skipif(
    nvrtc.find_missing_library() is not None, reason="there is no NVRTC"
)
# What nvcc has built the module for (CUDAARCHS): each takes minutes.
COMPARED = tuple(f"sm_{x}" for x in Code.read(native.built_with).machine) or ("sm_90",)
# Of this checkout, whatever is installed.
HEADERS = ROOT / "kernels-cuda" / "include"
# Bytes by which NVRTC 13 spills more than nvcc where registers are scarce, and those on 7.5, whose
# products call a function.
MORE_SPILLED, MORE_SPILLED_ON_TURING = 208, 352
TURING = "sm_75"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compiling, "find_headers", lambda: HEADERS)
    monkeypatch.setenv("LINATTN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that a stand-in for NVRTC has compiled."""
    compiled: list[str] = []

    def compile(
        source: str, kernels: tuple[str, ...], architecture: str, folders: tuple[Path, ...]
    ) -> nvrtc.Image:
        compiled.extend(kernels)
        code = f"{architecture}\n{len(compiled)}".encode() + b"\0\n"
        return nvrtc.Image(code, {kernel: f"_Z{kernel}" for kernel in kernels})

    monkeypatch.setattr(nvrtc, "compile_source", compile)
    monkeypatch.setattr(nvrtc, "version", lambda: "13.0")
    return compiled


def test_machine_code_is_kept_on_disk(cache: Path, compiler: list[str]) -> None:
    first = compiling.load_or_compile("scan", "sm_90")

    assert first == (b"sm_90\n1\0\n", "_Zscan")
    assert compiling.load_or_compile("scan", "sm_90") == first
    assert compiler == ["scan"]
    assert [x.suffix for x in cache.iterdir()] == [".cubin"]


def test_other_code_is_compiled_again(
    cache: Path, compiler: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another kernel, architecture, version of NVRTC, option, or header."""
    compiling.load_or_compile("scan", "sm_90")
    compiling.load_or_compile("step_heads", "sm_90")
    compiling.load_or_compile("scan", "sm_80")
    monkeypatch.setattr(nvrtc, "version", lambda: "13.1")
    compiling.load_or_compile("scan", "sm_90")
    monkeypatch.setattr(nvrtc, "OPTIONS", (*nvrtc.OPTIONS, "--use_fast_math"))
    compiling.load_or_compile("scan", "sm_90")
    monkeypatch.setattr(compiling, "_digest_of_headers", lambda folder: "changed")
    compiling.load_or_compile("scan", "sm_90")

    assert compiler == ["scan", "step_heads", "scan", "scan", "scan", "scan"]
    assert len(list(cache.iterdir())) == 6


@pytest.mark.parametrize("damage", ["", "_Zscan\n", "shortened", "\udcff"])
def test_a_damaged_file_is_written_again(cache: Path, compiler: list[str], damage: str) -> None:
    first = compiling.load_or_compile("scan", "sm_90")
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(
        whole[:-1] if damage == "shortened" else damage.encode(errors="surrogateescape")
    )

    second = compiling.load_or_compile("scan", "sm_90")
    assert second != first  # the stand-in counts what it compiled
    assert compiling.load_or_compile("scan", "sm_90") == second
    assert compiler == ["scan", "scan"]


def test_a_file_that_was_not_written_leaves_nothing(
    cache: Path, compiler: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_disk(file: Path, content: bytes) -> int:
        file.touch()
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", fill_disk)
    assert compiling.load_or_compile("scan", "sm_90")[1] == "_Zscan"
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("missing", ["disk", "home"])
def test_without_a_folder_it_compiles_each_time(
    missing: str, cache: Path, compiler: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    if missing == "home":
        monkeypatch.delenv("LINATTN_CACHE")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", find_no_home)
    else:
        cache.write_text("a file where the folder would be")
    for _ in range(2):
        assert compiling.load_or_compile("scan", "sm_90")[1] == "_Zscan"
    assert compiler == ["scan", "scan"]


def test_the_digest_is_of_the_headers_contents(tmp_path: Path) -> None:
    header = tmp_path / "linattn" / "calls.h"
    header.parent.mkdir()
    digests = set()
    for text in ("one", "two"):
        header.write_text(text)
        digests.add(compiling._digest_of_headers.__wrapped__(tmp_path))

    assert len(digests) == 2


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LINATTN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiling.cache_folder() == tmp_path / "linattn"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert compiling.cache_folder() == tmp_path / ".cache" / "linattn"


def test_all_kernels_ahead_of_their_first_calls(
    cache: Path, compiler: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "_native", driver_module())

    assert compiling.compile_kernels("sm_90") == cache
    assert compiler == driver_module().kernel_names()
    assert len(set(compiler)) == 20


def test_headers_are_those_of_the_compiled_module(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Structs of newer ones would not be those that the module hands over."""
    monkeypatch.setattr(
        compiling, "_native", SimpleNamespace(__file__=str(tmp_path / "_native.so"))
    )

    with pytest.raises(RuntimeError, match="calls"):
        compiling.find_headers.__wrapped__()
    (tmp_path / "include" / "linattn").mkdir(parents=True)
    (tmp_path / "include" / "linattn" / "calls.h").touch()
    assert compiling.find_headers.__wrapped__() == tmp_path / "include"


def test_without_nvrtc_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_library", lambda: None)

    for version, package in (("12.8", "nvidia-cuda-nvrtc-cu12`"), (None, "nvidia-cuda-nvrtc`")):
        monkeypatch.setattr(torch.version, "cuda", version)
        assert package in str(nvrtc.find_missing_library())
    with pytest.raises(RuntimeError, match="libnvrtc"):
        nvrtc.compile_source("", (), "sm_90", ())


@pytest.mark.parametrize(
    ("architecture", "served"),
    [("sm_90", "sm_90"), ("sm_121", "sm_120"), ("sm_89", "sm_86"), ("sm_75", None)],
)
def test_a_gpu_that_is_newer_than_nvrtc_runs_code_of_its_generation(
    architecture: str, served: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ("sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
    monkeypatch.setattr(nvrtc, "architectures", lambda: known)

    assert nvrtc.choose_architecture(architecture) == served


@needs_nvrtc
def test_what_nvrtc_refuses_is_shown_with_its_log() -> None:
    source = "__global__ void kernel() { nothing(); }"
    with pytest.raises(RuntimeError, match='"nothing" is undefined'):
        nvrtc.compile_source(source, ("kernel",), "sm_90", ())


@needs_nvrtc
def test_a_small_kernel(cache: Path) -> None:
    code, symbol = compiling.load_or_compile("step_heads", "sm_90")

    assert code.startswith(b"\x7fELF")
    assert symbol.encode() in code and "step_heads" in symbol


@pytest.fixture(scope="module", params=COMPARED)
def compiled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, Kernel]]]:
    """Every kernel by NVRTC for an architecture: minutes."""
    with pytest.MonkeyPatch.context() as patch:
        kept = os.environ.get("LINATTN_CACHE") or tmp_path_factory.mktemp("cache")
        patch.setenv("LINATTN_CACHE", str(kept))
        patch.setattr(compiling, "find_headers", lambda: HEADERS)
        yield request.param, kernels_by_nvrtc(request.param)


@pytest.mark.slow
@needs_nvrtc
def test_every_kernel_by_nvrtc(compiled: tuple[str, dict[str, Kernel]]) -> None:
    """Products on tensor cores."""
    architecture, kernels = compiled
    products = {name: kernel for name, kernel in kernels.items() if "product" in name}

    assert len(kernels) == 20 and len(products) == 18
    has_tensor_cores = architecture != TURING  # for bfloat16
    assert all((kernel.products > 0) == has_tensor_cores for kernel in products.values())
    if has_tensor_cores:
        spilled = {name: x.spilled for name, x in products.items()}
        assert max(spilled.values()) <= MOST_SPILLED + MORE_SPILLED, spilled


@pytest.mark.slow
@needs_nvrtc
def test_nvrtc_compiles_what_nvcc_compiles(compiled: tuple[str, dict[str, Kernel]]) -> None:
    """As many products on tensor cores, not many more registers, and not many more spills."""
    architecture, kernels = compiled
    if architecture.removeprefix("sm_") not in architectures():
        pytest.skip(f"the module was compiled by nvcc for sm {', '.join(architectures())}")
    theirs = kernels_by_nvcc(architecture)
    more_spilled = MORE_SPILLED_ON_TURING if architecture == TURING else MORE_SPILLED

    assert kernels.keys() == theirs.keys()
    for name, kernel in kernels.items():
        assert kernel.products == theirs[name].products, name
        assert kernel.spilled <= theirs[name].spilled + more_spilled, name
        assert kernel.registers <= 1.1 * theirs[name].registers, name
