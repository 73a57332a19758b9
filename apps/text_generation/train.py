"""Train a model of text: on your files, or on the source of Python's standard library.

    python apps/text_generation/train.py                            minutes on two cores
    python apps/text_generation/train.py --data FILE_OR_FOLDER ...
    python apps/text_generation/train.py --preset smoke             seconds

Every default is the preset's. A run is a folder: config.json, metrics.jsonl, summary.json,
checkpoints, and a picture, curve.png. A run that was stopped or killed continues with the same
command and --resume. generate.py writes text with it; linattn_models.load and
`python -m linattn_models.serving` take the folder as it is.
"""

from __future__ import annotations

if __name__ == "__main__":
    import language  # noqa: F401 - stops without linattn-lab
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from language.presets import PRESETS, RECOMMENDED, Attention, PresetName, Recipe
from language.tokens import name_dataset, read_tokens
from language.training import APP, train_model
from linattn_lab.script import preset_flags, run_script
from linattn_lab.tables import decimals, training_cost
from linattn_models.training import is_main_process


@dataclasses.dataclass(frozen=True)
class Flags:
    """The settings of a run."""

    preset: PresetName
    """smoke: seconds; laptop: minutes on two cores; large: hours of a GPU."""
    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    data: tuple[Path, ...] = ()
    """Files and folders of texts, or one folder that prepare.py wrote; the source of Python's
    standard library if not given. One file of twenty is held out; of fewer than 40 files, the last
    twentieth of each."""
    tokenizer: str | None = None
    """bytes (if not given), characters, bpe:4096 (byte-pair encoding, trained on the texts), or the
    file of a tokenizer."""
    attention: Attention = RECOMMENDED
    """linear: the paper's; fixed-decay, learned-decay: sums that fade; hedgehog-decay: with a
    learned feature map too; gated: sums that fade by what is read; window: softmax for the last
    keys; gated-window: both; softmax: the usual kind."""
    out: Path | None = None
    """Run folder; runs/text_generation/DATA-ATTENTION-PRESET if not given."""
    resume: bool = False
    """Continue the run in --out from its newest checkpoint."""


def main() -> None:
    """Trains, and measures on held-out text."""
    presets: dict[str, Flags] = {name: Flags(name, recipe()) for name, recipe in PRESETS.items()}
    flags = preset_flags(presets, description=__doc__)
    flags.recipe.training.config()  # refused before files are read
    dataset = name_dataset(flags.data)
    out = flags.out or Path("runs", APP, f"{dataset}-{flags.attention}-{flags.preset}")
    summary = train_model(
        flags.recipe,
        read_tokens(flags.data, flags.tokenizer, out),
        attention=flags.attention,
        preset=flags.preset,
        dataset=dataset,
        out=out,
        resume=flags.resume,
        announce=True,
    )
    if is_main_process():
        report(summary, out)


def report(summary: dict[str, Any], out: Path) -> None:
    """Prints the numbers."""
    metrics = summary["metrics"]
    print(f"{summary['attention']} attention, in {out}")
    nats, bits = (decimals(metrics[name], 3) for name in ("loss", "bits_per_byte"))
    print(f"  {nats} nats per held-out token, {bits} bits per byte,")
    print(f"  {metrics['accuracy']:.1%} of tokens right")
    print(f"  {training_cost(summary)}")


if __name__ == "__main__":
    run_script(main)
