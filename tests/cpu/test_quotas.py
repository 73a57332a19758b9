"""The CPU quota of a cgroup caps the threads, as the affinity mask does.

Quotas are written where the kernel would write them, in a mount namespace of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

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

for own, files in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        write_groups(own, files)
        print(_native.available_cores(), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    subprocess.run(["umount", "--lazy", str(FOLDER)], check=True)
"""
ISOLATED = ("unshare", "--mount", "--map-root-user")
MOUNTS = (*ISOLATED, "mount", "-t", "tmpfs", "none", "/sys/fs/cgroup")
# Version 1 lists the groups of other controllers too.
V1 = "12:memory:/other\n3:cpu,cpuacct:{}\n2:cpuset:/other\n"
HALF, ONE, MORE, MANY, NONE = "25000 50000", "50000 50000", "60000 50000", "5000000 50000", "max 1"
ALL = 10**6


def version_1(**quotas: int) -> dict[str, str]:
    """Files of groups by their quotas per 80 ms; "_" stands for "/"."""
    files = {}
    for group, quota in quotas.items():
        folder = f"cpu/{group.replace('_', '/')}"
        files |= {f"{folder}/cpu.cfs_quota_us": str(quota), f"{folder}/cpu.cfs_period_us": "80000"}
    return files


# The content of /proc/self/cgroup, files in /sys/fs/cgroup, and the cores of the process.
CASES: dict[str, tuple[str, dict[str, str], int]] = {
    "no group": ("", {}, ALL),
    "no line of a group": ("no group\n", {}, ALL),
    "no file": ("0::/a/b\n", {}, ALL),
    "no number": ("0::/\n", {"cpu.max": "nonsense"}, ALL),
    "no limit": ("0::/a/b\n", {"a/cpu.max": NONE, "a/b/cpu.max": NONE}, ALL),
    "the group": ("0::/a/b\n", {"a/cpu.max": NONE, "a/b/cpu.max": ONE}, 1),
    "the group around it": ("0::/a/b\n", {"a/cpu.max": ONE, "a/b/cpu.max": MANY}, 1),
    "the smaller one": ("0::/a/b\n", {"a/cpu.max": MANY, "a/b/cpu.max": MORE}, 2),
    "rounded up": ("0::/a/b\n", {"a/cpu.max": HALF, "a/b/cpu.max": MORE}, 1),
    "more than there are": ("0::/a\n", {"a/cpu.max": "99999999 1"}, ALL),
    "other groups": ("0::/a\n", {"ab/cpu.max": ONE, "a/b/cpu.max": ONE}, ALL),
    # Its group has a path of the host, of which nothing is mounted inside.
    "a container": ("0::/docker/1f3a\n", {"cpu.max": HALF}, 1),
    "1: no limit": (V1.format("/a/b"), version_1(a=-1, a_b=-1), ALL),
    "1: the group": (V1.format("/a/b"), version_1(a=-1, a_b=80_000), 1),
    "1: the group around it": (V1.format("/a/b"), version_1(a=40_000, a_b=8_000_000), 1),
    "1: rounded up": (V1.format("/a/b"), version_1(a=8_000_000, a_b=96_000), 2),
    "1: other groups": (V1.format("/a"), version_1(a=-1, other=80_000, a_b=80_000), ALL),
    "1: other controllers": ("5:cpuacct:/a\n6:memory:/a\n", version_1(a=80_000), ALL),
}


@pytest.fixture(scope="module")
def counted() -> dict[str, int]:
    """The available cores of a process in each case; skips where no namespace can be made."""
    if shutil.which("unshare") is None or not hasattr(os, "sched_getaffinity"):
        pytest.skip("no unshare here")
    if subprocess.run(MOUNTS, capture_output=True, check=False).returncode:
        pytest.skip("mounting in a namespace is not allowed here")
    ended = subprocess.run(
        [*ISOLATED, sys.executable, "-W", "ignore", "-c", PROGRAM],
        input=json.dumps([case[:2] for case in CASES.values()]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return dict(zip(CASES, map(int, ended.stdout.split()), strict=True))


@pytest.mark.xdist_group("quotas")  # one worker asks for all cases at once
@pytest.mark.parametrize("name", CASES)
def test_cores_are_those_of_the_mask_and_of_the_smallest_quota(
    name: str, counted: dict[str, int]
) -> None:
    assert counted[name] == min(len(os.sched_getaffinity(0)), CASES[name][2])
