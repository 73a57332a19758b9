"""Random calls of every live backend against the oracle: `python -m tests.contract.fuzz`.

Fails if a call is beyond its budget, or with 130 at Ctrl-C, after it has printed what was found by
then. What backends refuse is counted, argument by argument.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Sequence

import torch
from tqdm import tqdm

from .judging import complaints
from .places import device_of, usable_backends
from .random_calls import Call, Drawing

# What a wrong backend may raise instead of returning a result.
CRASHES = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)
INTERRUPTED = 130  # as a shell reports Ctrl-C


class Tally:
    """The results of the calls.

    Attributes:
        accepted, refused: how many, by backend and argument.
        reasons: how often each refusal came, by its sentence.
        failures: programs that repeat what went wrong.
        made: seeds whose calls were made on every backend.
        interrupted: whether Ctrl-C ended the run.
    """

    def __init__(self) -> None:
        self.accepted: Counter[tuple[str, str]] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()
        self.reasons: Counter[str] = Counter()
        self.failures: list[str] = []
        self.made = 0
        self.interrupted = False

    def judge(self, seed: int, backend: str) -> None:
        """Makes one call, and counts it."""
        device = device_of(backend)
        with contextlib.nullcontext() if device in (None, "cpu") else torch.device(device):
            call = Drawing(seed).call()
            try:
                wrong = complaints(call, backend)
            except CRASHES as error:
                if f"{backend!r} refuses" in str(error):
                    self.reasons[str(error)] += 1
                    self.refused.update((backend, x) for x in ("all", *call.arguments))
                    return
                wrong = [f"{type(error).__name__}: {error}"]
        self.accepted.update((backend, x) for x in ("all", *call.arguments))
        if wrong:
            self._keep(seed, call, backend, wrong)

    def _keep(self, seed: int, call: Call, backend: str, wrong: Sequence[str]) -> None:
        what = "\n# ".join((f"seed {seed}, backend {backend!r}:", *wrong))
        self.failures.append(f"# {what}\n{call.program(backend)}")

    def table(self, backends: Sequence[str]) -> str:
        """Calls that were accepted, and refused, by argument and backend."""
        arguments = sorted({x for _, x in (*self.accepted, *self.refused)})
        rows = [f"{'accepted + refused':20}" + "".join(f"{x:>20}" for x in backends)]
        for argument in arguments:
            counts = ((self.accepted[x, argument], self.refused[x, argument]) for x in backends)
            cells = (f"{a} + {b}" for a, b in counts)
            rows.append(f"{argument:20}" + "".join(f"{x:>20}" for x in cells))
        return "\n".join(rows)


def run(calls: int, seed: int, backends: Sequence[str], most: int = 20) -> Tally:
    """Makes calls of so many seeds on each backend, until `most` have failed or at Ctrl-C."""
    tally = Tally()
    try:
        for number in tqdm(range(seed, seed + calls), unit="call", mininterval=5):
            for backend in backends:
                tally.judge(number, backend)
            tally.made += 1
            if len(tally.failures) >= most:
                break
    except KeyboardInterrupt:
        tally.interrupted = True
    return tally


def main() -> None:
    """Parses the command line, runs, and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000, help="seeds, one after another")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--backend", action="append", help="one to call, in place of all")
    options = parser.parse_args()
    backends = options.backend or usable_backends()
    print(f"seeds {options.seed} to {options.seed + options.calls - 1} on {', '.join(backends)}")
    tally = run(options.calls, options.seed, backends)
    print(tally.table(backends))
    for reason, count in tally.reasons.most_common():
        print(f"{count} times: {reason}")
    print(*tally.failures, f"{len(tally.failures)} calls beyond their budget", sep="\n\n")
    if tally.made < options.calls:
        print(f"{tally.made:,} of {options.calls:,} calls made")
    sys.exit(INTERRUPTED if tally.interrupted else bool(tally.failures))


if __name__ == "__main__":
    main()
