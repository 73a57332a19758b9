"""Renders the templates of chats, in a process of its own that `chat` starts.

A template comes with a model of somebody else. Its values can double with each line, and a single
operation can take hours, so the operating system limits the process. It reads a line of JSON for
each text, and answers with one.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

try:
    import resource
except ImportError:  # of Windows, which has no such limits
    resource = None  # type: ignore[assignment]

# Bytes of the process, and seconds of a processor for a text.
MEMORY = 1 << 29
SECONDS = 1
# Characters of an error.
_LONGEST = 200


def main() -> None:
    """Answers until there are no more lines."""
    if resource:
        _limit(resource.RLIMIT_AS, MEMORY)
        _limit(resource.RLIMIT_CORE, 0)
    for line in sys.stdin:
        _allow_seconds()
        try:
            answer = {"text": _render(**json.loads(line))}
        except Exception as error:  # noqa: BLE001 - a template can raise any class
            answer = {"error": (str(error) or type(error).__name__)[:_LONGEST]}
        print(json.dumps(answer), flush=True)


def _allow_seconds() -> None:
    """Lets the system end the process after some more seconds of a processor."""
    if resource:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(usage.ru_utime + usage.ru_stime) + 1 + SECONDS)


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    within = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (within, hard))


def _render(source: str, values: dict[str, Any] | None, most: int) -> str:
    """The text of a template; of None as values, it is only compiled."""
    template, parts, length = _compile(source), [], 0
    for part in () if values is None else template.generate(values):
        parts.append(part)
        length += len(part)
        if length > most:
            raise TemplateError(f"a text of more than {most:,} characters")
    return "".join(parts)


@lru_cache(maxsize=8)
def _compile(source: str) -> Template:
    """A template that reads no private attributes and changes no values."""
    loops = "jinja2.ext.loopcontrols"
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loops]
    )
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(source)


def _refuse(message: object) -> None:
    raise TemplateError(str(message))


if __name__ == "__main__":
    main()
