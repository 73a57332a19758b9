"""How a script begins and ends: flags checked, results on stdout, one sentence on stderr."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn

import torch

DEBUG_VARIABLE = "LINATTN_DEBUG"
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


def run_script(main: Callable[[], object]) -> NoReturn:
    """Calls `main` and ends the process: 0 when it returns, 2 on bad input, 130 when interrupted.

    A ValueError or OSError, or a lack of memory, becomes one sentence on stderr; with
    LINATTN_DEBUG=1 in the environment the traceback comes before it. Any other exception is a bug
    and keeps its traceback.
    """
    try:
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
    """Refuses a flag below its minimum; None, where a default takes its place, is no number.

    Raises:
        ValueError: naming the flag, the minimum and what was given.
    """
    for name, minimum in least.items():
        value = getattr(flags, name)
        if value is not None and value < minimum:
            raise ValueError(
                f"expected --{name.replace('_', '-')} of {minimum} or more, got {value}"
            )


def _leave(error: BaseException, code: int, advice: str = "") -> NoReturn:
    if os.environ.get(DEBUG_VARIABLE) == "1":
        traceback.print_exception(error)
    sentence = " ".join(str(error).split()) or "interrupted"
    print(f"{advice}{sentence}", file=sys.stderr)
    sys.exit(code)


def lacks_memory(error: BaseException) -> bool:
    """Whether that is what an exception says, of Python, of torch or of its allocators."""
    # torch's allocator for the CPU raises a plain RuntimeError.
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return "allocate memory" in str(error) or "not enough memory" in str(error)
