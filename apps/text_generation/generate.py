"""Write text with a trained model, as a stream: each byte costs the same, wherever it stands.

    python apps/text_generation/generate.py --prompt "def main("
    python apps/text_generation/generate.py --run RUN --temperature 0.5 --length 10000

The prompt is printed, then the text as it is drawn; Ctrl-C ends it.
"""

from __future__ import annotations

if __name__ == "__main__":
    import language  # noqa: F401 - stops without linattn-lab
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401

import codecs
import dataclasses
from pathlib import Path

import torch

from language.presets import RECOMMENDED
from language.training import APP
from linattn_lab.runs import app_config
from linattn_lab.script import parse_flags, require_at_least, run_script
from linattn_models import AutoregressiveTransformer
from linattn_models.training import RunFolder


@dataclasses.dataclass(frozen=True)
class Flags:
    """Which run, and what it writes."""

    run: Path = Path("runs", APP, f"stdlib-{RECOMMENDED}-laptop")
    """Folder of the run that train.py made; its newest checkpoint is taken."""
    prompt: str = "import "
    """What the text begins with."""
    length: int = 1_000
    """Bytes to write after the prompt."""
    temperature: float = 0.8
    """Below 1, likely bytes are drawn more often; at 0, the likeliest always."""
    top_p: float = 0.95
    """Bytes are drawn from the likeliest whose probabilities add up to this."""
    seed: int = 0
    """Decides every draw."""


def main(flags: Flags) -> None:
    """Prints the prompt and what follows."""
    require_at_least(flags, {"length": 1, "seed": 0})
    run = RunFolder(flags.run)
    app_config(run, APP, ())
    model, _ = run.load_model(AutoregressiveTransformer.from_dict)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may have several bytes
    tokens = model.eval().stream(
        prefix=[list(flags.prompt.encode())],
        max_new_tokens=flags.length,
        temperature=flags.temperature,
        top_p=flags.top_p,
        generator=torch.Generator().manual_seed(flags.seed),
    )
    print(flags.prompt, end="", flush=True)
    for token in tokens:
        print(decoder.decode(bytes([int(token)])), end="", flush=True)
    print(decoder.decode(b"", True))


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
