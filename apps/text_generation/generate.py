"""Write text with a trained model, as a stream: each token costs the same, wherever it stands.

    python apps/text_generation/generate.py
    python apps/text_generation/generate.py RUN "def main("
    python apps/text_generation/generate.py RUN "def main(" --temperature 0.5 --length 10000
    python apps/text_generation/generate.py RUN --chat

Without RUN, the model is the one in pretrained/, of Python's standard library. The prompt is
printed, then the text as it is drawn; Ctrl-C ends it. In a chat, the model continues each line of
yours with one of its own. It keeps its state between them, whose size does not grow. The model in
pretrained/ knows Python alone, so a chat needs one that has learned such lines.
"""

from __future__ import annotations

if __name__ == "__main__":
    import language  # noqa: F401 - stops without linattn-lab
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import tyro

from linattn_core.errors import expected
from linattn_lab.machine import default_device
from linattn_lab.script import parse_flags, require_at_least, run_script
from linattn_models import AutoregressiveTransformer, DecodingState, load

PRETRAINED = Path(__file__).parent / "pretrained"


@dataclasses.dataclass(frozen=True)
class Flags:
    """Which model, and what it writes."""

    run: tyro.conf.Positional[Path] = PRETRAINED
    """Folder of a run of train.py, or of a saved model with a tokenizer."""
    prompt: tyro.conf.Positional[str | None] = None
    """What the text begins with; "import " if not given, or nothing in a chat."""
    chat: bool = False
    """Continue each line of the input by another one."""
    length: int | None = None
    """The most tokens to write after the prompt, or after a line; if not given 1,000, or 200 in a
    chat."""
    temperature: float = 0.8
    """Below 1, likely tokens are drawn more often; at 0, the likeliest always."""
    top_p: float = 0.95
    """Tokens are drawn from the likeliest whose probabilities add up to this."""
    seed: int = 0
    """Decides every draw."""


def main(flags: Flags) -> None:
    """Prints the prompt and what follows, or answers line by line."""
    require_at_least(flags, {"length": 1, "seed": 0})
    writer = Writer(flags, load_text_model(flags.run))
    if flags.chat:
        chat(writer, flags.prompt or "")
        return
    prompt = "import " if flags.prompt is None else flags.prompt
    print(prompt, end="", flush=True)
    for part in writer.write(prompt):
        print(part, end="", flush=True)
    print()


def load_text_model(folder: Path) -> AutoregressiveTransformer:
    """The model of a folder, if it writes text."""
    model = load(folder)
    if not isinstance(model, AutoregressiveTransformer) or model.tokenizer is None:
        wanted, advice = "a model with a tokenizer", "train one with train.py"
        raise ValueError(expected(str(folder), wanted, "another model", advice))
    return model.to(default_device())


class Writer:
    """Continues texts with a model.

    Attributes:
        state: all that the model remembers; None before the first text.
    """

    def __init__(self, flags: Flags, model: AutoregressiveTransformer) -> None:
        self.state: DecodingState | None = None
        self._flags, self._model = flags, model
        self._length = flags.length or (200 if flags.chat else 1_000)
        self._generator = torch.Generator(model.device).manual_seed(flags.seed)

    def write(self, text: str, stop: str | None = None) -> Iterator[str]:
        """Yields what follows a text, after those before, until it has `stop` in it."""
        stream = self._model.stream(
            prefix=text,
            state=self.state,
            max_new_tokens=self._length,
            stop_strings=stop,
            temperature=self._flags.temperature,
            top_p=self._flags.top_p,
            generator=self._generator,
            return_state=True,
            text=True,
        )
        yield from stream
        self.state = stream.state


def chat(writer: Writer, prompt: str) -> None:
    """Answers the lines of the input; `prompt` stands before the first one."""
    print("> ", end="", flush=True)
    for line in sys.stdin:
        try:
            for part in writer.write(prompt + line, stop="\n"):
                print(part.removesuffix("\n"), end="", flush=True)
        except ValueError as error:  # such as a character that the tokenizer does not have
            print(error, file=sys.stderr)
            continue
        prompt, state = "", writer.state
        if state is not None:
            print(f"\n[state: {state.nbytes:,} bytes after {state.position} positions]")
        print("> ", end="", flush=True)
    print()


if __name__ == "__main__":
    run_script(lambda: main(parse_flags(Flags, description=__doc__)))
