"""From the messages of a chat to the text that a model continues."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from linattn_core.errors import expected, quote
from linattn_models.basics.validation import json_object

# The template of a model without one: a line for each message, and one that the model continues.
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
_PLAIN_STOP = "\nuser:"
# Seconds of a processor that a template may take, and the longest result of a product in it.
_TIME = 1.0
_LONGEST = 1 << 16


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
        _compile(self.source)

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
        template, parts, length = _compile(self.source), [], 0
        try:
            with _deadline(_TIME):
                for part in template.generate(values):
                    parts.append(part)
                    length += len(part)
                    if length > most:
                        raise _Refused(f"a text of more than {most:,} characters")
        except Exception as error:  # noqa: BLE001 - a template can raise any class
            wanted = "messages that the chat template takes"
            raise ValueError(expected("messages", wanted, quote(str(error)))) from None
        return "".join(parts)


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


class _Refused(TemplateError):
    """Messages that a template refuses, or what a template may not do."""


def _refuse(message: object) -> None:
    raise _Refused(str(message))


class _Sandbox(ImmutableSandboxedEnvironment):
    """Reads no private attributes, writes none, and makes no large values by products."""

    intercepted_binops = frozenset(["*", "**", "%"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """A product of small numbers, or of a text and a small number."""
        sizes = [x if isinstance(x, int | float) else len(x) for x in (left, right)]
        texts = isinstance(left, str) or isinstance(right, str)
        is_large = operator == "*" and abs(sizes[0] * sizes[1]) > _LONGEST
        if is_large or operator == "**" or (operator == "%" and texts):
            raise _Refused(f"a value that is too large, by {operator}")
        return super().call_binop(context, operator, left, right)


@lru_cache
def _compile(source: str) -> Template:
    loops = "jinja2.ext.loopcontrols"
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loops])
    environment.globals["raise_exception"] = _refuse
    try:
        return environment.from_string(source)
    except TemplateError as error:
        wanted = "a template of Jinja"
        raise ValueError(expected("the chat template", wanted, quote(str(error)))) from None


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Ends the Python code of this thread after some seconds, also loops without output."""
    end, before = time.thread_time() + seconds, sys.gettrace()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if time.thread_time() > end:
            raise _Refused(f"a template that takes more than {seconds:g} seconds")
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
