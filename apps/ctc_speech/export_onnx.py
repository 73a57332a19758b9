"""Write a recognizer that streams as an ONNX model, whose state is an input and an output.

    python apps/ctc_speech/export_onnx.py --run RUN --out model.onnx
    python apps/ctc_speech/export_onnx.py --run RUN --chunk 4 --average 5 --out model.onnx

The run is one of train.py --preset streaming. The model takes any number of streams side by side;
its metadata has the features, their normalization, the chunk and the labels. run_onnx.py runs it.
Needs onnxscript.
"""

from __future__ import annotations

if __name__ == "__main__":
    import speech.startup  # noqa: F401  (before torch)

import dataclasses
from pathlib import Path

from linattn_core.errors import expected
from linattn_lab.runs import make_folders
from linattn_lab.script import parse_flags, require_at_least, run_script
from linattn_models.basics.files import replace_file
from speech.export import export_recognizer
from speech.models import load_run


@dataclasses.dataclass(frozen=True)
class Flags:
    """Which run, and where to."""

    run: Path
    """Folder of the run that train.py made."""
    out: Path
    """The file."""
    chunk: int = 8
    """Frames of 40 ms that the model takes at once."""
    average: int = 1
    """How many of the newest checkpoints the weights are the mean of."""


def main(flags: Flags) -> None:
    """Writes the model."""
    require_at_least(flags, {"chunk": 1, "average": 1})
    if flags.out.is_dir():
        raise ValueError(expected("--out", "a file", f"the folder {flags.out}"))
    make_folders(flags.out.parent)
    run = load_run(flags.run, flags.average)
    content = export_recognizer(run, flags.chunk)
    replace_file(flags.out, content)
    print(f"{run.label}, chunk {flags.chunk}: {flags.out}, {len(content) / 1e6:.1f} MB")


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
