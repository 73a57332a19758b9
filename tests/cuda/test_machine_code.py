"""What the compiler made of the kernels: every architecture, tensor cores, nothing spilled."""

from __future__ import annotations

import os
import re

import pytest

from tests.cuda.machine_code import architectures, cuda_module, dump

FUNCTION = re.compile(r"Function (\S+):")
RESOURCES = re.compile(r"STACK:(\d+) .*LOCAL:(\d+)")
# The products of numbers in one part, bfloat16, and in two, float16. Three parts are float32's.
HALF = re.compile(r"ProductShapeILi[12]E")


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    cuda_module()


def test_every_architecture_is_in_the_module() -> None:
    found = {x for line in dump("-lelf") for x in re.findall(r"sm_(\d+)", line)}

    assert found == set(architectures())
    if "CUDAARCHS" not in os.environ:
        assert found == {"75", "80", "90", "100", "120"}


@pytest.mark.parametrize("architecture", [80, 90, 100, 120])
def test_products_run_on_tensor_cores(architecture: int) -> None:
    """Every kernel that multiplies matrices does so by HMMA, and none of half precision spills."""
    if str(architecture) not in architectures():
        pytest.skip(f"built for sm {', '.join(architectures())}")
    with_tensor_cores, spilling, kernel = set(), set(), ""
    for line in dump("-sass", "-arch", f"sm_{architecture}"):
        if "Function :" in line:
            kernel = line.split(":")[1].strip()
        elif "HMMA" in line:
            with_tensor_cores.add(kernel)
        elif re.search(r"\b(LDL|STL)\b", line):
            spilling.add(kernel)

    assert with_tensor_cores and all("product" in x for x in with_tensor_cores)
    assert {x for x in spilling if HALF.search(x)} == set()


def test_a_relay_reads_a_whole_state_before_it_writes_one() -> None:
    """Loads between two stores: 35 numbers a thread, where each waited for a store before."""
    architecture = next((x for x in ("90", "80", "100") if x in architectures()), None)
    if architecture is None:
        pytest.skip(f"built for sm {', '.join(architectures())}")
    loads, inside = [0], False
    for line in dump("-sass", "-arch", f"sm_{architecture}"):
        if "Function :" in line:
            inside = "ProductShapeILi1ELi64ELi64E" in line
        elif inside and re.search(r"\bLDG?\.", line):
            loads[-1] += 1
        elif inside and re.search(r"\bSTG?\.", line):
            loads.append(0)

    assert max(loads[1:]) >= 32


def test_half_precision_spills_nothing_anywhere() -> None:
    """Neither on the stack nor in local memory, by the compiler's own account.

    But for 7.5, which has no tensor cores for bfloat16 and calls a function in their place.
    """
    architecture, kernel, checked, spilling = "", "", 0, []
    for line in dump("-res-usage"):
        if line.startswith("arch = "):
            architecture = line.strip()
        named = FUNCTION.search(line)
        if named:
            kernel = named[1]
        used = RESOURCES.search(line)
        if used and HALF.search(kernel) and architecture != "arch = sm_75":
            checked += 1
            if used.groups() != ("0", "0"):
                spilling.append((architecture, kernel, line.strip()))

    assert checked >= 2 * (len(architectures()) - 1)
    assert spilling == []
