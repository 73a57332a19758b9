"""For scripts: flags that override a preset, errors as one sentence on stderr, exit codes."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, get_type_hints

import torch
import tyro

from linattn_core.errors import expected
from linattn_models.basics.memory import lacks_memory

DEBUG_VARIABLE = "LINATTN_DEBUG"
DEFAULT_PRESET = "laptop"
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_CLOSED_OUTPUT = 141  # as of a program that SIGPIPE ends
# The processes of torchrun mostly refuse the same. The first one prints it, and then torchrun ends
# the others, which wait so many seconds for that. What may be theirs alone they print after fewer.
TORCHRUN_ENDS_WITHIN = 120.0
FIRST_PRINTS_WITHIN = 5.0

_registry = tyro.constructors.ConstructorRegistry()

Flags = TypeVar("Flags")


def preset_flags(
    presets: Mapping[str, Flags],
    *,
    description: str | None,
    args: Sequence[str] | None = None,
) -> Flags:
    """The preset that `--preset` names, with its fields overridden by the other flags.

    Args:
        presets: by name, dataclasses with a field `preset`, a Literal of the names; their values
            are the flags' defaults. Without `--preset`, that of "laptop".
        description: the first text of `--help`.
        args: the command line without the program; None takes that of this process.

    Raises:
        SystemExit: as `parse_flags`.
    """
    name = peek_flag("preset", DEFAULT_PRESET, args)
    # Of an unknown name, tyro lists the known ones.
    flags = presets.get(name, presets[DEFAULT_PRESET])
    return parse_flags(type(flags), description=description, default=flags, args=args)


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
        SystemExit: 0 after `--help`; 2 after flags that do not parse, with what is wrong on stderr.
        ValueError: an integer that does not fit into 64 bits.
    """
    optional: dict[str, Any] = {} if default is None else {"default": default}
    flags: Flags = tyro.cli(
        kind,
        prog=sys.argv[0],
        description=description,
        args=args,
        registry=_registry,
        **optional,
    )
    _require_64_bits(flags)
    return flags


@_registry.primitive_rule
def _write_none_plainly(
    kind: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[None] | None:
    """In `--help`, `None|PATH` for a flag that may be None."""
    if kind.type is not type(None):
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="None",
        choices=("None",),
        instance_from_str=lambda words: None,
        is_instance=lambda value: value is None,
        str_from_instance=lambda value: ["None"],
    )


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
    KeyboardInterrupt, even if an import of the script has set another handler. Where a reader of
    the output such as `head` has ended, the process ends quietly, with 141. Of the processes of
    torchrun, the first one prints what all refuse.
    """
    warnings.formatwarning = lambda message, *_: f"warning: {message}\n"
    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _call_and_flush(main)
    except BrokenPipeError:
        # What is left in the buffers goes nowhere, or Python would complain when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_CLOSED_OUTPUT)
    except (ValueError, OSError) as error:
        _leave(error, EXIT_BAD_INPUT)
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        _leave(error, EXIT_BAD_INPUT, "not enough memory, ask for a smaller model or batch")
    except KeyboardInterrupt as error:
        _leave(error, EXIT_INTERRUPTED, "" if str(error) else "interrupted")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        end_process_group()
    sys.exit(0)


def end_process_group() -> None:
    """Destroys the process group, after the models that use it.

    A DistributedDataParallel is part of a reference cycle. If it is freed after the group, it waits
    for the threads of gloo while it holds Python's lock, and a thread that needs the lock to free
    its last work waits for it: a deadlock.
    """
    gc.collect()
    torch.distributed.destroy_process_group()


def _call_and_flush(main: Callable[[], object]) -> None:
    try:
        main()
    except SystemExit:  # after --help
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def require_at_least(flags: object, least: Mapping[str, int]) -> None:
    """Refuses a flag below its minimum; None, for a default, is accepted.

    A flag of several numbers, a tuple, needs at least one, and each has to reach the minimum.
    """
    for name, minimum in least.items():
        value, flag = getattr(flags, name), f"--{name.replace('_', '-')}"
        if isinstance(value, tuple):
            if min(value, default=minimum - 1) < minimum:
                named = " ".join(map(str, value)) or "none"
                raise ValueError(expected(flag, f"numbers of {minimum} or more", named))
        elif value is not None and value < minimum:
            raise ValueError(expected(flag, f"{minimum} or more", value))


def _require_64_bits(flags: object, prefix: str = "--") -> None:
    """Refuses an integer that torch and numpy cannot hold."""
    if not dataclasses.is_dataclass(flags):
        return
    hints = get_type_hints(type(flags), include_extras=True)
    for field in dataclasses.fields(flags):
        value, flag = getattr(flags, field.name), f"{prefix}{field.name.replace('_', '-')}"
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, int) and abs(each) >= 1 << 63:
                raise ValueError(expected(flag, "a number of 64 bits", each))
            # With tyro.conf.arg(name="") the flags of a field have no prefix.
            named = getattr(hints[field.name], "__metadata__", ())
            bare = any(getattr(x, "name", None) == "" for x in named)
            _require_64_bits(each, prefix if bare else f"{flag}.")


def require_one_process() -> None:
    """Refuses torchrun, on every rank, before any work: for scripts that share none."""
    processes = os.environ.get("WORLD_SIZE", "1")
    if processes != "1":
        raise ValueError(expected(sys.argv[0], "one process", f"{processes} of torchrun"))


def _leave(error: BaseException, code: int, advice: str = "") -> NoReturn:
    if os.environ.get("RANK", "0") != "0":
        if getattr(error, "on_all_processes", False):
            time.sleep(TORCHRUN_ENDS_WITHIN)
            sys.exit(code)
        time.sleep(FIRST_PRINTS_WITHIN)
    if os.environ.get(DEBUG_VARIABLE) == "1":
        traceback.print_exception(error)
    parts = [advice, " ".join(str(error).split())]
    print(": ".join(filter(None, parts)) or type(error).__name__, file=sys.stderr)
    sys.exit(code)
