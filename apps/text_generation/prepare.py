"""Write the tokens of a large corpus once; train.py reads them from disk, whatever their size.

    python apps/text_generation/prepare.py --data FOLDER --tokenizer bpe:4096 --out TOKENS
    python apps/text_generation/train.py --data TOKENS --preset large

TOKENS is a folder: training.bin and held_out.bin, the tokenizer, and tokens.json with the counts.
"""

from __future__ import annotations

if __name__ == "__main__":
    import language  # noqa: F401 - stops without linattn-lab
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401

import dataclasses
from pathlib import Path

from language.tokens import prepare
from language.training import describe_texts
from linattn_lab.script import parse_flags, require_one_process, run_script


@dataclasses.dataclass(frozen=True)
class Flags:
    """Which texts, and where their tokens go."""

    out: Path
    """A new folder for the tokens."""
    data: tuple[Path, ...] = ()
    """Files and folders of texts; the source of Python's standard library if not given."""
    tokenizer: str = "bytes"
    """bytes, characters, bpe:4096 (byte-pair encoding, trained on the texts), or the file of a
    tokenizer."""


def main(flags: Flags) -> None:
    """Writes the folder, and prints what is in it."""
    require_one_process()
    print(describe_texts(prepare(flags.data, flags.tokenizer, flags.out)))
    print(f"written: {flags.out}")


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
