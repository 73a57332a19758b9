"""What the GPU is: printed as JSON by a process of its own, which alone touches the driver.

python -m benchmarks.gpu.probe
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess

import torch


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU and what drives it.

    Args:
        capability: such as "9.0".
        l2_bytes: of its second-level cache; 0 where torch does not tell.
    """

    name: str
    capability: str
    multiprocessors: int
    memory_gib: float
    l2_bytes: int
    driver: str
    cuda: str

    @property
    def architecture(self) -> str:
        """The machine code that runs on it, as CMAKE_CUDA_ARCHITECTURES has it."""
        return self.capability.replace(".", "") + "-real"

    @property
    def slug(self) -> str:
        """Its name in a file's name."""
        kept = "".join(c if c.isalnum() else " " for c in self.name.lower())
        return "-".join(kept.split())

    @property
    def description(self) -> str:
        """One line for the report."""
        return (
            f"{self.name}, {self.multiprocessors} multiprocessors, {self.memory_gib:g} GiB, L2 "
            f"{self.l2_bytes / 2**20:.0f} MiB, capability {self.capability}; driver {self.driver}, "
            f"CUDA {self.cuda}"
        )


STAND_IN = Gpu("stand-in for a GPU", "0.0", 0, 0.0, 0, "none", "none")


def main() -> None:
    """Prints the GPU's record, or `{"none": reason}`."""
    found = find()
    record = {"none": found} if isinstance(found, str) else dataclasses.asdict(found)
    print(json.dumps(record))


def find() -> Gpu | str:
    """Returns the first GPU that torch sees, or the sentence that says why there is none."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA; install a CUDA build of it."
    if not torch.cuda.is_available():
        return "torch sees no GPU; run this where nvidia-smi shows one."
    properties = torch.cuda.get_device_properties(0)
    return Gpu(
        name=properties.name,
        capability=f"{properties.major}.{properties.minor}",
        multiprocessors=properties.multi_processor_count,
        memory_gib=round(properties.total_memory / 2**30, 1),
        l2_bytes=getattr(properties, "L2_cache_size", 0),
        driver=_driver(),
        cuda=torch.version.cuda,
    )


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown"
    answer = subprocess.run(
        [program, "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return answer.stdout.strip().splitlines()[0] if answer.stdout.strip() else "unknown"


if __name__ == "__main__":
    main()
