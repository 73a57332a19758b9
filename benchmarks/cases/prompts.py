"""The time to the first new token after prompts of different lengths, read at once or in steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.cases.decoders import LINEAR, compiled_decoder, compiled_name
from benchmarks.cases.models import Task
from benchmarks.measure import oracle
from benchmarks.measure.cases import Case, Make, Method, Settings, registry
from benchmarks.measure.results import Target
from linattn_models import AutoregressiveTransformer
from linattn_models.decoding.stepping import step_through

PROMPTS, SHORTEST, LONGEST = 16, 10, 1_000
COMPILED = compiled_name("float32")
AT_ONCE, IN_STEPS = "at once", "in steps"


def method(decoder_name: str, how: str, asked: Task, settings: Settings) -> Method:
    """Returns the prediction of the token after each prompt as a method."""
    task = asked.sized(settings)
    model = task.model()
    decoder = model if decoder_name == LINEAR else compiled_decoder(model, "float32")
    tokens, lengths = _prompts(model, task.batch)

    @torch.inference_mode()
    def predict() -> Tensor:
        if how == AT_ONCE:
            return decoder.prefill(tokens, lengths)[0]
        _, state = decoder.prefill(tokens[:, :0])
        return step_through(decoder, tokens, lengths, state, None)[0]

    return Method(partial(_fault, model, tokens, lengths, predict), predict)


def _prompts(model: AutoregressiveTransformer, count: int) -> tuple[Tensor, Tensor]:
    """Random tokens (count, N) and lengths that are spread evenly."""
    longest = int(model.max_length or 0) - 1
    lengths = torch.linspace(min(SHORTEST, longest), longest, count).round().long()
    generator = torch.Generator().manual_seed(2)
    return torch.randint(model.head.levels, (count, longest), generator=generator), lengths


@torch.no_grad()
def _fault(
    model: AutoregressiveTransformer, tokens: Tensor, lengths: Tensor, predict: Callable[[], Tensor]
) -> str | None:
    """Compares with each prompt alone, in float64."""
    exact = copy.deepcopy(model).double()
    rows = zip(tokens, lengths.tolist(), strict=True)
    alone = torch.cat([exact.predict_next(row[None, :length]) for row, length in rows])
    return oracle.disagreement("the predictions", predict(), alone)


def _methods(task: Task, settings: Settings) -> dict[str, Make]:
    return {
        f"{name}, {how}": partial(method, name, how, task, settings)
        for name in (LINEAR, COMPILED)
        for how in (AT_ONCE, IN_STEPS)
    }


registry.add(
    Case(
        "generation/prompts/ragged",
        f"The first new token after {PROMPTS} prompts of {SHORTEST} to {LONGEST:,} tokens, read "
        "at once, or in steps.",
        setup=partial(_methods, Task(PROMPTS, length=LONGEST + 1)),
        targets=tuple(
            Target.faster(f"{name}, {AT_ONCE}", f"{name}, {IN_STEPS}", 5)
            for name in (LINEAR, COMPILED)
        ),
        seconds=60, rounds=(3, 10),
    ),
)  # fmt: skip
