"""The CPU quota of a cgroup caps the threads, as the affinity mask does.

Quotas are written where the kernel would write them, in a mount namespace of their own.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from itertools import product

import pytest

# Each case runs in its own process, because the quota is read once. The input is JSON: the content
# of /proc/self/cgroup, and of files in /sys/fs/cgroup by name.
PROGRAM = """
import json, os, pathlib, subprocess, sys
from linattn_cpu import _native

FOLDER = pathlib.Path("/sys/fs/cgroup")

def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)

def write_groups(own, files):
    mount("-t", "tmpfs", "none", str(FOLDER))
    for name, content in {"own": own, **files}.items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(content)
    mount("--bind", str(FOLDER / "own"), f"/proc/{os.getpid()}/cgroup")

def print_cores(case):
    child = os.fork()
    if child == 0:
        write_groups(*case)
        print(_native.available_cores(), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    subprocess.run(["umount", "--lazy", str(FOLDER)], check=True)

for case in json.load(sys.stdin):
    print_cores(case)
"""
ISOLATED = ("unshare", "--mount", "--map-root-user")
MOUNTS = (*ISOLATED, "mount", "-t", "tmpfs", "none", "/sys/fs/cgroup")
NONE, HALF, ONE, MORE, MANY = math.inf, 0.5, 1.0, 1.2, 100.0

Case = tuple[str, dict[str, str]]


def version_2(own: str, **quotas: float) -> Case:
    """A process in the group `own`, and quotas of groups in cores, with "_" for "/" in names."""
    files = {}
    for group, quota in quotas.items():
        limit = "max" if quota == NONE else str(round(quota * 50_000))
        files[f"{group.replace('_', '/')}/cpu.max"] = f"{limit} 50000\n"
    return f"0::{own}\n", files


def version_1(own: str, **quotas: float) -> Case:
    """As `version_2`, beside lines of other controllers."""
    files = {}
    for group, quota in quotas.items():
        folder = f"cpu/{group.replace('_', '/')}"
        files[f"{folder}/cpu.cfs_quota_us"] = str(-1 if quota == NONE else round(quota * 80_000))
        files[f"{folder}/cpu.cfs_period_us"] = "80000"
    return f"12:memory:/other\n3:cpu,cpuacct:{own}\n2:cpuset:/other\n", files


NESTED = list(product((NONE, HALF, ONE, MORE, MANY), repeat=2))
OTHERS = version_1("/a", a=NONE, other=ONE, a_b=ONE)
# The cases by name, and the quotas of each that count: the process gets the smallest.
CASES: dict[str, list[tuple[Case, tuple[float, ...]]]] = {
    "version 2, a group and the one around it": [
        (version_2("/a/b", a=outer, a_b=inner), (outer, inner)) for outer, inner in NESTED
    ],
    "version 1, a group and the one around it": [
        (version_1("/a/b", a=outer, a_b=inner), (outer, inner)) for outer, inner in NESTED
    ],
    "other groups": [
        (version_2("/a", ab=ONE, a_b=ONE), ()),
        (OTHERS, ()),
        (("5:cpuacct:/a\n6:memory:/a\n", version_1("/a", a=ONE)[1]), ()),
    ],
    "no quota that can be read": [
        (("", {}), ()),
        (("0::/a/b\n", {}), ()),
        (("no group\n", {}), ()),
        (("0::/\n", {"cpu.max": "nonsense"}), ()),
    ],
    # Its group has a path of the host, of which nothing is mounted inside.
    "a container": [(("0::/docker/1f3a\n", {"cpu.max": "50000 100000"}), (HALF,))],
}


@pytest.fixture(scope="module")
def counted() -> dict[str, list[int]]:
    """The available cores of a process in each case; skips where no namespace can be made."""
    if shutil.which("unshare") is None or not hasattr(os, "sched_getaffinity"):
        pytest.skip("no unshare here")
    if subprocess.run(MOUNTS, capture_output=True, check=False).returncode:
        pytest.skip("mounting in a namespace is not allowed here")
    ended = subprocess.run(
        [*ISOLATED, sys.executable, "-W", "ignore", "-c", PROGRAM],
        input=json.dumps([case for cases in CASES.values() for case, _ in cases]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    counts = map(int, ended.stdout.split())
    return {name: [next(counts) for _ in cases] for name, cases in CASES.items()}


@pytest.mark.xdist_group("quotas")  # one worker asks for all cases at once
@pytest.mark.parametrize("name", CASES)
def test_cores_are_those_of_the_mask_and_of_the_smallest_quota(
    name: str, counted: dict[str, list[int]]
) -> None:
    mask = len(os.sched_getaffinity(0))

    assert counted[name] == [
        min([mask, *(math.ceil(quota) for quota in quotas if quota < math.inf)])
        for _, quotas in CASES[name]
    ]
