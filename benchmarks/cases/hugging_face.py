"""Greedy tokens through transformers: ours from a state, GPT-2 from a cache that grows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from benchmarks.case import Case, Make, Method, Settings
from benchmarks.cases import peers
from benchmarks.cases.decoders import LINEAR
from benchmarks.cases.models import Task
from linattn_lab.timing import stopwatch
from linattn_models import Categorical

OURS, GPT2 = "LinattnForCausalLM", "transformers' GPT-2"
FIRST, LAST = "first hundred", "last hundred"
VOCABULARY, NEW = 256, 100
# Matrices are multiplied by this number, so that each token depends on those before it.
LARGER = 4
TASK = Task(1, length=4_001)  # the start vector of our model takes a position
# How far the logit of a token may be below the largest one, relative to the largest magnitude; both
# in float64.
TOLERANCE = 1e-3

Generate = Callable[[], Tensor]
"""Returns the new tokens, (1, new)."""
Prepare = Callable[[], Generate]
"""Copies the memory after the prompt, which the call that is timed may change."""
Model = TypeVar("Model", bound=nn.Module)
Predict = Callable[[Tensor], Tensor]
"""From tokens (1, N), the float64 logits (1, N - 1, V) of each but the first."""


def _methods(settings: Settings) -> dict[str, Make]:
    task = TASK.for_settings(settings)
    new = min(NEW, (task.length - 1) // 2)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(VOCABULARY, (1, task.length), generator=generator)
    prompts = {FIRST: tokens[:, :1], LAST: tokens[:, : task.length - 1 - new]}
    builders = {OURS: linattn_for_causal_lm, LINEAR: eager, GPT2: gpt2}
    return {
        f"{name}, {part}": partial(_method, build, task, prompt, new, settings)
        for name, build in builders.items()
        for part, prompt in prompts.items()
    }


def linattn_for_causal_lm(
    task: Task, prompt: Tensor, new: int, settings: Settings
) -> tuple[Prepare, Predict]:
    """Our model by `generate` of transformers."""
    library = peers.load("linattn_models.huggingface", settings)
    model = _larger(task.model(head=Categorical(VOCABULARY)))
    wrapped = library.LinattnForCausalLM.from_linattn(model)
    return _through_transformers(wrapped, prompt, new, settings)


def gpt2(task: Task, prompt: Tensor, new: int, settings: Settings) -> tuple[Prepare, Predict]:
    """A GPT-2 of the same sizes by `generate` of transformers."""
    library = peers.load("transformers", settings)
    config = library.GPT2Config(
        vocab_size=VOCABULARY, n_positions=task.length, n_embd=task.num_heads * task.head_dim,
        n_layer=task.num_layers, n_head=task.num_heads, n_inner=task.ffn_dim,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = library.GPT2LMHeadModel(config).eval().requires_grad_(False)
    return _through_transformers(_larger(model), prompt, new, settings)


def eager(task: Task, prompt: Tensor, new: int, settings: Settings) -> tuple[Prepare, Predict]:
    """Our model by its own `generate`, without a compiled decoder."""
    model = _larger(task.model(head=Categorical(VOCABULARY)))
    _, state = model.prefill(prompt[:, :-1])
    generate = partial(
        model.generate, prefix=prompt[:, -1:], state=state, length=1 + new, temperature=0.0,
        decoder="eager",
    )  # fmt: skip
    return (
        lambda: lambda: generate()[:, 1:],
        lambda tokens: copy.deepcopy(model).double()(tokens)[:, 1:],
    )


@torch.no_grad()
def _larger(model: Model) -> Model:
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.mul_(LARGER)
    return model


@torch.no_grad()
def _through_transformers(
    model: Any, prompt: Tensor, new: int, settings: Settings
) -> tuple[Prepare, Predict]:
    cache = peers.load("transformers", settings).DynamicCache()
    if prompt.shape[1] > 1:
        model(prompt[:, :-1], cache=cache, use_cache=True, logits_to_keep=1)
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": new}
    generate = partial(model.generate, prompt, do_sample=False, **options)

    def prepare() -> Generate:
        own = copy.deepcopy(cache)
        return lambda: generate(cache=own)[:, prompt.shape[1] :]

    def predict(tokens: Tensor) -> Tensor:
        logits: Tensor = copy.deepcopy(model).double()(tokens, use_cache=False).logits
        return logits[:, :-1]

    return prepare, predict


def _method(
    build: Callable[..., tuple[Prepare, Predict]],
    task: Task,
    prompt: Tensor,
    new: int,
    settings: Settings,
) -> Method:
    prepare, predict = build(task, prompt, new, settings)
    return Method(
        partial(fault, prompt, prepare, predict),
        measure=lambda: stopwatch(settings.device)(prepare()),
        units=new,
    )


@torch.no_grad()
def fault(prompt: Tensor, prepare: Prepare, predict: Predict) -> str | None:
    """Compares new tokens with the most probable ones of the parallel form in float64."""
    tokens = prepare()()
    new = tokens.shape[1]
    logits = predict(torch.cat([prompt, tokens], 1))[:, -new:]
    below = logits.amax(-1) - logits.gather(-1, tokens[..., None])[..., 0]
    others = int((below > TOLERANCE * logits.abs().max()).sum())
    return f"{others} of {new} tokens are not the most probable ones" if others else None


CASES = (
    Case(
        "generation/hugging-face/4000-tokens",
        "The first and the last hundred of 4,000 greedy tokens, batch 1, 8 layers, 8 heads of 32, "
        f"vocabulary {VOCABULARY}: our model through `generate` of transformers, beside its own "
        "eager `generate` and a GPT-2 of the same sizes, whose cache grows.",
        setup=_methods,
        ratios=tuple((f"{name}, {LAST}", f"{name}, {FIRST}") for name in (OURS, LINEAR, GPT2)),
        unit="step", seconds=30, rounds=(3, 30),
    ),
)  # fmt: skip
