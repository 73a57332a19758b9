"""From the messages of a chat to the text that a model continues."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linattn_core.errors import expected, quote
from linattn_models.basics.validation import json_object

# The template of a model without one: a line for each message, and one that the model continues.
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
_PLAIN_STOP = "\nuser:"
_RENDERER = Path(__file__).with_name("renderer.py")
_LIMITS = "a template that takes more than a second, or too much memory"


@dataclass(frozen=True)
class ChatTemplate:
    """A template of Jinja, as transformers has them, which runs in a sandbox.

    Attributes:
        source: gets `messages`, `add_generation_prompt` and the special tokens.
        tokens: the texts of special tokens, such as `bos_token`; an answer ends at `eos_token`.

    Raises:
        ValueError: not a template.
    """

    source: str = PLAIN
    tokens: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.source != PLAIN:
            self._ask("the chat template", "a template of Jinja", None, 0)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts with which the next message begins."""
        return (_PLAIN_STOP,) if self.source == PLAIN else ()

    def render(self, messages: Sequence[Mapping[str, str]], most: int) -> str:
        """The text of a chat up to where the answer begins.

        Raises:
            ValueError: messages that the template refuses, a text of more than `most` characters,
                or a template that takes too long.
        """
        values = {**self.tokens, "messages": messages, "add_generation_prompt": True}
        return self._ask("messages", "messages that the chat template takes", values, most)

    def _ask(self, name: str, wanted: str, values: Mapping[str, Any] | None, most: int) -> str:
        answer = _PROCESS.ask({"source": self.source, "values": values, "most": most})
        if "error" in answer:
            raise ValueError(expected(name, wanted, quote(answer["error"])))
        return answer["text"]


def read_template(folder: Path) -> ChatTemplate:
    """The template beside a model, in the files of transformers; the plain one without them."""
    config, file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    values = json_object(config.read_bytes(), str(config)) if config.exists() else {}
    source = file.read_text(encoding="utf-8") if file.exists() else values.get("chat_template")
    if source is None:
        return ChatTemplate()
    if not isinstance(source, str):
        raise ValueError(expected(str(config), "one chat_template", quote(source)))
    tokens = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = values.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return ChatTemplate(source, tokens)


class _Process:
    """A process that renders one text after the other; started again where one has ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        atexit.register(self._end)

    def ask(self, call: Mapping[str, Any]) -> dict[str, str]:
        """The text of a template, or an error."""
        with self._lock:
            if self._process is None:
                # -P: the folder of the file is no place to import from.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", str(_RENDERER)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # an interrupt is for the server
                )
            line = _send(self._process, json.dumps(call).encode() + b"\n")
            if not line:
                self._end()
                return {"error": _LIMITS}
        answer: dict[str, str] = json.loads(line)
        return answer

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _send(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """The line that answers; none from a process that has ended."""
    assert process.stdin and process.stdout
    try:
        process.stdin.write(line)
        process.stdin.flush()
        return process.stdout.readline()
    except OSError:
        return b""


_PROCESS = _Process()
