"""The packages from the source tree alone: kernels for this GPU, the rest by its path."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu import child
from benchmarks.gpu.stages import StageFailed

ROOT = Path(__file__).parent.parent.parent
PACKAGE = Path("packages") / "linattn-cuda"
USUAL_NVCC = Path("/usr/local/cuda/bin/nvcc")


def find_nvcc() -> str | None:
    """Returns nvcc's path, from PATH or the usual folder, or None."""
    return shutil.which("nvcc") or (str(USUAL_NVCC) if USUAL_NVCC.exists() else None)


def nvcc_version(nvcc: str) -> str:
    """Returns its release, such as "13.0"."""
    answer = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    _, _, rest = answer.stdout.partition("release ")
    return rest.partition(",")[0] or "unknown"


def source_folders(root: Path = ROOT) -> list[Path]:
    """Returns the folders that make pure Python packages importable; the others are built."""
    packages = sorted(path for path in (root / "packages").iterdir() if (path / "src").is_dir())
    return [path / "src" for path in packages if not (path / "CMakeLists.txt").exists()]


def environment(site: Path, root: Path = ROOT) -> dict[str, str]:
    """Returns the environment in which the built package and the sources import.

    The build comes first: it is the one that has the native module and the entry points.
    """
    known = os.environ.get("PYTHONPATH", "")
    folders = [site, root, *source_folders(root), *([Path(known)] if known else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(folder) for folder in folders)}


def command(site: Path, architecture: str) -> list[str]:
    """Returns pip's call: nothing but the source tree, nothing but this GPU's machine code."""
    return [
        sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation",
        "--no-cache-dir", "--disable-pip-version-check", "--target", str(site),
        "-C", f"cmake.define.CMAKE_CUDA_ARCHITECTURES={architecture}",
        "-C", "cmake.define.LINATTN_CUDA=ON", str(PACKAGE),
    ]  # fmt: skip


def build(site: Path, architecture: str, nvcc: str, seconds: float, root: Path = ROOT) -> str:
    """Builds linattn-cuda into `site` and returns what was built.

    Raises:
        StageFailed: with the end of what the compiler said.
    """
    if not (root / PACKAGE / "pyproject.toml").exists():
        raise StageFailed(f"{PACKAGE} is not in this source tree")
    given = {**environment(site, root), "CUDACXX": nvcc}
    ended = child.run(command(site, architecture), seconds=seconds, folder=root, environment=given)
    if ended.code != 0:
        raise StageFailed(f"the build {ended.words}:\n{ended.output}")
    return f"linattn-cuda for {architecture} by nvcc {nvcc_version(nvcc)}"
