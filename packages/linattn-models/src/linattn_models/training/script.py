"""For scripts: flags that override a preset, errors as one sentence on stderr, signals."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, NoReturn, TypeVar

import torch
import tyro

from linattn_core.errors import expected, near, quote
from linattn_models.memory import lacks_memory

DEBUG_VARIABLE = "LINATTN_DEBUG"
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
_STDERR = 2
_WIDTH, _DEEPEST = 80, 8  # of a description; the most spaces before its lines
_RULE = re.compile(r"^ *-{3,} *$", re.MULTILINE)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Flags = TypeVar("Flags")


def preset_flags(
    presets: Mapping[str, Flags],
    default: str,
    *,
    description: str,
    args: Sequence[str] | None = None,
) -> Flags:
    """The preset that `--preset` names, with its fields overridden by the other flags.

    Args:
        presets: by name, dataclasses with a field `preset`; their values are the flags' defaults.
        default: the preset that is used without `--preset`.
        description: the first text of `--help`.
        args: the command line without the program; None takes that of this process.

    Raises:
        ValueError: if no preset has the name.
        SystemExit: after `--help`, or after flags that do not parse.
    """
    arguments = sys.argv[1:] if args is None else list(args)
    name = peek_flag("preset", default, arguments)
    if name not in presets:
        raise ValueError(expected("--preset", "a known name", quote(name), near(name, presets)))
    flags = presets[name]
    return parse_flags(type(flags), description=description, default=flags, args=arguments)


def parse_flags(
    kind: type[Flags],
    *,
    description: str | None,
    default: Flags | None = None,
    args: Sequence[str] | None = None,
) -> Flags:
    """The command line as a dataclass; the docstrings of its fields are their help.

    Args:
        kind: the dataclass, a flag for each of its fields.
        description: what `--help` begins with.
        default: the values of the flags that are not given, in place of the fields' own.
        args: the command line without the program; None takes that of this process.

    Raises:
        SystemExit: 0 after `--help`; 2 after flags that do not parse, which is one sentence on
            stderr.
    """
    optional: dict[str, Any] = {} if default is None else {"default": default}
    # Where stdout is no UTF-8 terminal, tyro draws lines of dashes in place of boxes.
    said, fault = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(fault):
            flags: Flags = tyro.cli(
                kind, prog=sys.argv[0], description=description, args=args, **optional
            )
    except SystemExit:
        print(_readable(said.getvalue()), end="")
        if fault.getvalue():
            print(_one_sentence(fault.getvalue()), file=sys.stderr)
        raise
    return flags


def peek_flag(name: str, default: str, args: Sequence[str] | None = None) -> str:
    """The value of `--name` before the flags are parsed, for presets that depend on it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(f"--{name}", default=default, nargs="?")
    return str(getattr(parser.parse_known_args(args)[0], name.replace("-", "_")) or default)


def run_script(main: Callable[[], object]) -> NoReturn:
    """Calls `main` and ends the process: 0 when it returns, 2 on bad input, 130 when interrupted.

    A ValueError, an OSError or a lack of memory becomes one sentence on stderr; with
    LINATTN_DEBUG=1 in the environment the traceback is printed before it. Any other exception is a
    bug and keeps its traceback. A warning is printed as one sentence. Ctrl-C raises
    KeyboardInterrupt, even if an import of the script has set another handler.
    """
    warnings.formatwarning = lambda message, *_: f"warning: {message}\n"
    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        main()
    except (ValueError, OSError) as error:
        _leave(error, EXIT_BAD_INPUT)
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        _leave(error, EXIT_BAD_INPUT, "not enough memory, ask for a smaller model or batch: ")
    except KeyboardInterrupt as error:
        _leave(error, EXIT_INTERRUPTED)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    sys.exit(0)


def require_at_least(flags: object, least: Mapping[str, int]) -> None:
    """Refuses a flag below its minimum; None, for a default, is accepted.

    A flag of several numbers, a tuple, needs at least one, and each has to reach the minimum.

    Raises:
        ValueError: naming the flag, the minimum and the value.
    """
    for name, minimum in least.items():
        value, flag = getattr(flags, name), f"--{name.replace('_', '-')}"
        if isinstance(value, tuple):
            if min(value, default=minimum - 1) < minimum:
                named = " ".join(map(str, value)) or "none"
                raise ValueError(expected(flag, f"numbers of {minimum} or more", named))
        elif value is not None and value < minimum:
            raise ValueError(expected(flag, f"{minimum} or more", value))


class StopRequest:
    """Inside the `with` block, the first SIGINT or SIGTERM sets `requested`; a second interrupts.

    Outside the main thread Python allows no signal handlers, and this does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            if handler is not None:  # installed from C, which Python cannot put back
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt(f"stopped at once by a second {signal.Signals(number).name}")
        self.requested = True
        with contextlib.suppress(OSError):  # not print, which may be what was interrupted
            os.write(_STDERR, b"\nstopping after this step; once more stops at once\n")


def _readable(text: str) -> str:
    """The help without lines of dashes, its paragraphs wrapped."""
    lines: list[str] = []
    for line in (line.rstrip() for line in text.splitlines() if not _RULE.match(line)):
        if lines and _continues(lines[-1], line):  # tyro breaks lines where docstrings do, too
            lines[-1] += f" {line.lstrip()}"
        else:
            lines.append(line)
    return re.sub("\n{3,}", "\n\n", "".join(f"{_wrapped(line)}\n" for line in lines))


def _continues(before: str, line: str) -> bool:
    """Whether a line goes on with the paragraph before it, or with the help of the flag there."""
    column = len(line) - len(line.lstrip())
    if column > _DEEPEST:
        return before[column - 2 : column] == "  "
    return line[:1].strip() != "" and before[:1].strip() != ""


def _wrapped(line: str) -> str:
    """A paragraph of the description, or the help of a flag in its column."""
    if not line.startswith(" "):
        return textwrap.fill(line, _WIDTH)
    flag = re.match(rf"  \S.*?  +| {{{_DEEPEST},}} ", line)
    if flag is None:
        return line
    return textwrap.fill(
        line[flag.end() :].removesuffix(" (default: )"),
        shutil.get_terminal_size().columns,
        initial_indent=flag[0],
        subsequent_indent=" " * flag.end(),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _one_sentence(fault: str) -> str:
    """What tyro says of flags that do not parse, without the help that it repeats."""
    _, problem, *_ = *_RULE.split(fault), fault  # after the title
    if required := re.findall(r"^ {6}(-\S.*?) *$", problem, re.MULTILINE):
        return f"expected {', '.join(required)}, got none; --help lists the flags."
    meant = re.search(r"Perhaps you meant:\s+(--[\w-]+)", fault)
    advice = f"did you mean {meant[1]}?" if meant else "--help lists the flags."
    return f"{' '.join(problem.split()).rstrip('.')}; {advice}"


def _leave(error: BaseException, code: int, advice: str = "") -> NoReturn:
    if os.environ.get(DEBUG_VARIABLE) == "1":
        traceback.print_exception(error)
    sentence = " ".join(str(error).split()) or "interrupted"
    print(f"{advice}{sentence}", file=sys.stderr)
    sys.exit(code)
