"""One wheel for every machine: each build of the kernels that runs here is right."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
import torch

import linattn_cpu
from linattn_core import info, linear_attention_step
from linattn_cpu import _native
from tests.cuda.emulated_build import program

from .calls import draw, run, zeros


def test_tiles_are_used_where_linux_grants_them() -> None:
    processor = Path("/proc/cpuinfo")
    flags = set(processor.read_text().split()) if processor.exists() else set()
    if not {"avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"} <= flags:
        pytest.skip("the processor has no AMX")
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    if ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) != 0:
        pytest.skip("the system grants no tiles")
    assert linattn_cpu.instruction_sets()[0] == "amx"


def test_info_says_which_faster_set_was_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a module was built on an older machine."""
    monkeypatch.setattr(_native, "machine_sets", lambda: ["avx1024", "baseline"])
    assert "avx1024" in next(x for x in info.lines() if x.startswith("  cpu"))
    monkeypatch.undo()
    assert set(linattn_cpu.instruction_sets()) <= set(_native.machine_sets())


@pytest.mark.parametrize("chosen", ["native", "all", "avx2"])
def test_the_build_compiles_what_was_chosen(chosen: str, tmp_path: Path, repository: Path) -> None:
    ended = subprocess.run(
        [
            program("cmake"), "-G", "Ninja", "-S", str(repository / "packages/linattn-cpu"),
            "-B", str(tmp_path), "-D", f"CMAKE_MAKE_PROGRAM={program('ninja')}",
            "-D", "LINATTN_EXERCISE=ON", "-D", f"LINATTN_ISA={chosen}",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if chosen not in ("native", "all"):
        assert ended.returncode != 0 and "expected native or all" in ended.stderr
        return
    compiled = (tmp_path / "generated" / "compiled_sets.hpp").read_text()
    names = re.findall(r"X\((\w+)\)", compiled.partition("(X)")[2])
    machine = _native.machine_sets()
    assert names[-1] == "baseline"
    assert (
        set(names) == {machine[0], "baseline"} if chosen == "native" else set(names) >= set(machine)
    )


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="sse9"):
        linattn_cpu.use_instruction_set("sse9")


def test_info_names_the_live_build(instruction_set: str) -> None:
    line = next(x for x in info.lines() if x.startswith("  cpu"))
    assert f" {instruction_set} " in line


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dim", [40, 64])
def test_half_precision_is_rounded_once(instruction_set: str, dim: int, dtype: torch.dtype) -> None:
    """Inputs are read exactly, and outputs are those of float32, rounded to nearest."""
    tensors = draw(1, 2, 40, dim, dtype=dtype)

    half = run(tensors, is_causal=True)
    single = run([x.float() for x in tensors], is_causal=True)

    assert torch.equal(half["s"], single["s"])
    assert torch.equal(half["out"], single["out"].to(dtype))


def test_every_float16_is_read_and_written_unchanged(instruction_set: str) -> None:
    """Subnormal and infinite ones too: with a single key, the output is its value."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    value = bits.view(torch.float16)
    value = value[torch.isfinite(value)].view(1, 1, 1, -1)
    one = torch.ones(1, 1, 1, 1, dtype=torch.float16)

    state = zeros([one, one, value, value])
    out, _ = linear_attention_step(
        one[:, :, 0], one[:, :, 0], value[:, :, 0], state,
        feature_map="identity", eps=0.0, backend="cpu",
    )  # fmt: skip

    assert torch.equal(out, value[:, :, 0])


def test_elu_is_exact_to_two_units_in_the_last_place(instruction_set: str) -> None:
    """A step from nothing leaves phi(k) in z; here every key is a sequence of its own."""
    x = torch.cat([torch.linspace(-87, 0, 40_001), torch.linspace(0, 5, 1001)])
    key = x.view(-1, 1, 1)

    _, state = linear_attention_step(
        key, key, key, zeros([key.unsqueeze(2)] * 4), inplace=True, backend="cpu"
    )

    exact = torch.where(x > 0, x.double() + 1, x.double().exp())
    ulps = (state.z.flatten().double() - exact).abs() / exact / torch.finfo(x.dtype).eps
    assert ulps.max() < 2
