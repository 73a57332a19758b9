"""A training step of the paper's MNIST model, beside the same step with other attentions.

The memory of freed tensors is kept for new ones, as in `linattn_models.training.train`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

import linattn_core
from benchmarks import oracle
from benchmarks.case import Case, Make, Method, Settings
from benchmarks.cases import methods, peers
from benchmarks.cases.models import MODEL, Task
from benchmarks.cases.operators import LINEAR_CPU, SDPA, require_backend
from benchmarks.cases.peer_decoder import peer_options, peer_weights
from benchmarks.cases.peers import FAST_TRANSFORMERS
from benchmarks.cases.problem import Problem
from linattn_models import AutoregressiveTransformer, Transformer
from linattn_models.training import freed_memory_kept

BATCH = 4
LEARNING_RATE = 1e-4
ALONE, ATTENTION = "its matrix products alone", "its attention alone"
PRODUCTS = 3  # products of a matrix in a step: forward, and the gradients of inputs and weights
# Parameters that every method has by the same name, with gradients through all layers.
COMPARED = ("start", "embeddings.0.weight", "positions.table", "output.weight")


def setup(settings: Settings) -> dict[str, Make]:
    """The model with each attention; the peer has our weights."""
    task = Task(BATCH).for_settings(settings)

    def linear() -> Method:
        require_backend("cpu")  # the backend that "auto" chooses on a CPU
        return update(make_trainable("linear", task), task)

    return {
        LINEAR_CPU: linear,
        SDPA: lambda: update(make_trainable("softmax", task), task),
        FAST_TRANSFORMERS: lambda: _peer_step(task, settings),
        ALONE: lambda: _products(task),
        ATTENTION: lambda: _attention(task, settings),
    }


def make_trainable(attention: str | None, task: Task) -> AutoregressiveTransformer:
    """The model, ready for updates."""
    return task.model(attention).train().requires_grad_()


def operations(task: Task) -> float:
    """Operations of the layers' matrices in a step: two for each weight in each product."""
    return PRODUCTS * 2.0 * task.batch * task.length * task.matrix_weights


def fault(
    model: AutoregressiveTransformer,
    ours: AutoregressiveTransformer,
    compared: Sequence[str] = COMPARED,
) -> str | None:
    """Compares the loss and gradients of a sequence with those of our model in float64."""
    tokens = _tokens(ours.max_length, 1)
    names = ("the loss", *(f"the gradient of {name}" for name in compared))
    actual = _loss_and_gradients(model, tokens, compared)
    with linattn_core.use_backend("reference"):
        exact = _loss_and_gradients(copy.deepcopy(ours).double(), tokens, compared)
    faults = (oracle.find_disagreement(*each) for each in zip(names, actual, exact, strict=True))
    return next((said for said in faults if said is not None), None)


def _peer_step(task: Task, settings: Settings) -> Method:
    """The peer's encoder with our weights, inside our embeddings and output."""
    builders, masking = (
        peers.load(f"fast_transformers.{name}", settings) for name in ("builders", "masking")
    )
    ours = make_trainable("linear", task)
    encoder = builders.TransformerEncoderBuilder.from_kwargs(
        attention_type="causal-linear", **peer_options(ours.config)
    ).get()
    encoder.load_state_dict(peer_weights(ours.transformer))

    def with_mask(_: nn.Module, inputs: tuple[Any, ...], __: object) -> tuple[Any, Any]:
        """The peer takes a causal mask at every call, and no position of the first vector."""
        return (*inputs, masking.TriangularCausalMask(inputs[0].shape[1])), {}

    encoder.register_forward_pre_hook(with_mask, with_kwargs=True)
    model = copy.deepcopy(ours)
    model.transformer = cast(Transformer, encoder)
    return update(model, task, ours)


def update(
    model: AutoregressiveTransformer,
    task: Task,
    ours: AutoregressiveTransformer | None = None,
    compared: Sequence[str] = COMPARED,
) -> Method:
    """Updates by Adam on a batch of the task.

    Args:
        ours: the model with which a peer's is compared; the model itself if not given.
        compared: the parameters whose gradients are.
    """
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, fused=True)
    tokens = _tokens(task.length, task.batch)

    def run() -> None:
        optimizer.zero_grad()
        model.loss(tokens).backward()
        optimizer.step()

    check = partial(fault, model, ours or model, compared)
    return Method(check, run, operations=operations(task))


def _products(task: Task) -> Method:
    """The products of the layers' matrices in a step, by torch."""
    rows, width = task.batch * task.length, task.num_heads * task.head_dim
    square, expand, contract = (width, width), (task.ffn_dim, width), (width, task.ffn_dim)
    generator = torch.Generator().manual_seed(0)
    layers = task.num_layers * [*4 * [square], expand, contract]
    weights = [torch.randn(shape, generator=generator) for shape in layers]
    tensors = {n: torch.randn(rows, n, generator=generator) for n in (width, task.ffn_dim)}

    def multiply(weight: Tensor, inputs: Tensor, upstream: Tensor) -> tuple[Tensor, ...]:
        return inputs @ weight.mT, upstream @ weight, upstream.mT @ inputs

    def operands(weight: Tensor) -> tuple[Tensor, ...]:
        return weight, tensors[weight.shape[1]], tensors[weight.shape[0]]

    def run() -> None:
        for weight in weights:
            multiply(*operands(weight))

    def wrong() -> str | None:
        first = operands(weights[-1])
        pairs = zip(multiply(*first), multiply(*(x.double() for x in first)), strict=True)
        faults = (oracle.find_disagreement("a product", *pair) for pair in pairs)
        return next((said for said in faults if said is not None), None)

    return Method(wrong, run, operations=operations(task))


def _attention(task: Task, settings: Settings) -> Method:
    """The calls of the operator in a step, with gradients."""
    problem = Problem(task.length, task.batch, task.num_heads, task.head_dim, backward=True)
    call = methods.method(LINEAR_CPU, problem, settings)

    def run() -> None:
        for _ in range(task.num_layers):
            call.run()

    return dataclasses.replace(call, run=run, operations=0, traffic=0)


def _tokens(length: int, batch: int) -> Tensor:
    return torch.randint(256, (batch, length), generator=torch.Generator().manual_seed(2))


def _loss_and_gradients(
    model: AutoregressiveTransformer, tokens: Tensor, names: Sequence[str]
) -> tuple[Tensor, ...]:
    loss, parameters = model.loss(tokens), [model.get_parameter(x) for x in names]
    return loss.detach()[None], *torch.autograd.grad(loss, parameters)


CASES = (
    Case(
        "training/step",
        shows="Forward, backward and Adam's update of the paper's MNIST model in float32: batch "
        f"{BATCH}, {MODEL}. The memory of freed tensors is kept for new ones.",
        setup=setup,
        ratios=((FAST_TRANSFORMERS, LINEAR_CPU), (SDPA, LINEAR_CPU)),
        unit="step", seconds=60, rounds=(3, 20),
        around=freed_memory_kept,
    ),
)  # fmt: skip
