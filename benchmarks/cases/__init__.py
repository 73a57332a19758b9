"""The cases by theme, in the order in which they run."""

from benchmarks.case import Case
from benchmarks.cases import (
    anywhere,
    costs,
    decoding,
    errors,
    hugging_face,
    images,
    lengths,
    lsh_layer,
    operator,
    parallel,
    serving,
    speech,
    tokens,
    training,
)

THEMES = (
    operator, errors, lengths, lsh_layer, decoding, tokens, images, serving, hugging_face, training,
    speech, parallel, costs, anywhere,
)  # fmt: skip
CASES: tuple[Case, ...] = tuple(case for theme in THEMES for case in theme.CASES)


def find_case(name: str, device: str = "cpu") -> Case:
    """The device's case of exactly this name."""
    return next(case for case in CASES if (case.name, case.device) == (name, device))
