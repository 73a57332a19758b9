"""Runs of `train` on several ranks, which have to be the run of one process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.testing import assert_close

from linattn_models import AutoregressiveTransformer, TransformerConfig
from linattn_models.training import (
    RunFolder,
    TrainingConfig,
    sum_over_processes,
    take_share,
    train,
)
from linattn_models.training.checkpoint import read_checkpoint

STEPS, LENGTH, LEVELS = 5, 9, 7
Loss = Callable[[AutoregressiveTransformer, dict[str, Tensor]], Any]


class Sequences:
    """Tokens of different lengths."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(LEVELS, (21, LENGTH), generator=generator)
        self.lengths = torch.randint(1, LENGTH + 1, (21,), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, indices: Tensor) -> dict[str, Tensor]:
        return {"tokens": self.tokens[indices], "lengths": self.lengths[indices]}


class Uneven:
    """An order whose batches have 5, 4, 3, 2 and 1 examples."""

    def indices(self, step: int) -> Tensor:
        return torch.arange(3 * step, 3 * step + STEPS - step)


def mean_over_tokens(
    model: AutoregressiveTransformer, batch: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """The sum and the number of this process's terms."""
    own = torch.arange(LENGTH)[model.own_positions(LENGTH)]
    count = (own < batch["lengths"][:, None]).sum()
    return -model.log_probs(batch["tokens"], batch["lengths"]).sum(), count


def mean_over_examples(model: AutoregressiveTransformer, batch: dict[str, Tensor]) -> Tensor:
    return model.loss(batch["tokens"])


def evaluate(model: AutoregressiveTransformer) -> dict[str, float]:
    own = take_share(Sequences().tokens[:5])
    nats, count = sum_over_processes(float(-model.log_probs(own).sum()), own.numel())
    return {"nats": nats / count}


def make_run(out: Path, steps: int = STEPS, **options: Any) -> dict[str, Any]:
    """One process's part of a run in `out`; `options` go to `train` or its configuration."""
    arguments: dict[str, Any] = {"loss": mean_over_tokens, "evaluate": evaluate}
    arguments |= {"model": build_model(), "describe": {"app": "parallel"}}
    for name in (*arguments, "order", "resume"):
        if name in options:
            arguments[name] = options.pop(name)
    settings = {"batch_size": 8, "learning_rate": 0.02, "log_every": 1, "clip_norm": 0.5, **options}
    model = arguments.pop("model")
    return train(
        model,
        Sequences(),
        **arguments,
        config=TrainingConfig(steps=steps, optimizer="adamw", **settings),
        out=out,
        model_config={},
    )


def build_model() -> AutoregressiveTransformer:
    torch.manual_seed(0)
    layers = TransformerConfig(2, 2, 4, 12, tie_embeddings=True)
    return AutoregressiveTransformer(layers, LEVELS, LENGTH).double()


CASES: dict[str, dict[str, Any]] = {
    "tokens": {"loss": mean_over_tokens},
    "examples": {"loss": mean_over_examples},
    "uneven": {"loss": mean_over_examples, "order": Uneven()},
    "uneven-tokens": {"loss": mean_over_tokens, "order": Uneven()},
}
DIVISIONS: list[tuple[str, dict[str, Any]]] = [
    ("tokens", {}),
    ("tokens", {"parallel": "fsdp", "activation_checkpointing": True}),
    ("tokens", {"context_parallel": 2, "gradient_accumulation_steps": 2}),
    ("examples", {"parallel": "fsdp", "context_parallel": 2, "gradient_accumulation_steps": 2}),
    ("uneven", {"parallel": "fsdp", "gradient_accumulation_steps": 2}),
    ("uneven-tokens", {}),
    # In float64, which autocast leaves as it is.
    ("tokens", {"parallel": "fsdp", "mixed_precision": "bf16"}),
]


def make_runs_of_one(folder: Path) -> None:
    """The runs that those of several processes have to equal, and one that these continue."""
    for name, options in CASES.items():
        make_run(folder / name, **options)
    make_run(folder / "chain", steps=2)


def check_end_of_chain(folder: Path) -> None:
    """One process continues what several have continued."""
    with pytest.warns(UserWarning, match="process"):
        make_run(folder / "chain", resume=True)
    assert_same_run(folder / "chain", folder / "tokens")


def check_training(rank: int, ranks: int, folder: Path) -> None:
    # More ranks than two add a mesh of both dimensions, and nothing else.
    divisions = [x for x in DIVISIONS if ranks == 2 or "context_parallel" in x[1]]
    for number, (name, division) in enumerate(divisions):
        out = folder / f"division-{number}"
        model = build_model()
        case = CASES[name]
        divided = {**case, "loss": watch_division(case["loss"], division), **division}
        make_run(out, model=model, **divided)
        assert_same_run(out, folder / name)
        weights = read_checkpoint(out / "checkpoints" / f"step-{STEPS}").weights
        assert_close(dict(model.state_dict()), weights, rtol=0, atol=0)  # on every rank
    with pytest.warns(UserWarning, match="process"):
        make_run(folder / "chain", steps=3, resume=True, parallel="fsdp")
    make_run(folder / "chain", steps=4, resume=True, context_parallel=2)
    check_refusals(rank, ranks, folder)


def watch_division(loss: Loss, division: dict[str, Any]) -> Loss:
    """The loss, of a model that is divided as was asked for."""

    def watch(model: AutoregressiveTransformer, batch: dict[str, Tensor]) -> Any:
        assert (model.mesh is not None) == ("context_parallel" in division)
        shards = isinstance(model.transformer.blocks[0], FSDPModule)
        assert shards == ("parallel" in division)
        return loss(model, batch)

    return watch


def check_refusals(rank: int, ranks: int, folder: Path) -> None:
    """What one rank refuses, all refuse, in the same words."""
    unknown = nn.Linear(2, 2).double()
    wrong: list[tuple[str, Path, dict[str, Any]]] = [
        ("seed", folder / "new", {"seed": rank}),
        ("context_parallel", folder / "new", {"context_parallel": 2 * ranks * rank + 1}),
        ("evaluate", folder / "new", {"evaluate": evaluate if rank else None}),
        ("a run", folder / "chain", {}),
        ("context_parallel", folder / "new", {"context_parallel": ranks + 1}),
        ("context_parallel", folder / "new", {"context_parallel": 2, "model": unknown}),
        ("batch_size", folder / "new", {"batch_size": 2 * ranks - 1}),
        ("JSON", folder / "new", {"describe": {"app": object() if rank else "parallel"}}),
    ]
    for named, out, options in wrong:
        with pytest.raises((ValueError, TypeError), match=named) as error:
            make_run(out, **options)
        told: list[Any] = [None] * ranks
        dist.all_gather_object(told, str(error.value))
        assert set(told) == {told[0]}
    assert not (folder / "new").exists()


def assert_same_run(out: Path, one: Path) -> None:
    """Losses are equal to 1e-12, weights and the optimizer's state to 1e-10."""
    for line, wanted in zip(_lines(out), _lines(one), strict=True):
        with contextlib.suppress(KeyError):
            del line["seconds"], wanted["seconds"]
        assert line.pop("split") == wanted.pop("split")
        assert line == pytest.approx(wanted, rel=1e-12)
    ours, theirs = (
        read_checkpoint(x) for x in (RunFolder(y).checkpoints()[-1] for y in (out, one))
    )
    assert_close(ours.weights, theirs.weights, rtol=1e-10, atol=1e-10)
    assert_close(ours.state["optimizer"], theirs.state["optimizer"], rtol=1e-10, atol=1e-10)


def _lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (out / "metrics.jsonl").read_text().splitlines()]
