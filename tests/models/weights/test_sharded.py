"""Models after `fully_shard`: saved whole, trained, and refused in one sentence where they step."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, multiprocessing
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from linattn_lab.script import end_process_group
from linattn_models import load, save
from tests.models.tiny import Loss, ints, random_tokens, tiny_model, tiny_transformer

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")


@pytest.fixture
def one_rank() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def shard_layers(model: Any) -> Any:
    for module in (*model.transformer.blocks, model):
        fully_shard(module)
    return model


def as_one_of_two(rank: int, folder: Path) -> None:
    """One process of two."""
    store = distributed.FileStore(str(folder / "store"), 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    check_half(rank, folder)
    end_process_group()


def check_half(rank: int, folder: Path) -> None:
    """Both processes train a model, each on a half of the data, save and load it."""
    torch.manual_seed(0)
    whole = tiny_model().float()
    tokens = random_tokens(whole, 4, 5)
    half = tokens.chunk(2)[rank]
    sharded, replica = shard_layers(deepcopy(whole)), deepcopy(whole)
    parallel = DistributedDataParallel(Loss(replica))

    whole.loss(tokens).backward()
    sharded.loss(half).backward()
    parallel(half).backward()
    parameters = zip(*(x.parameters() for x in (whole, sharded, replica)), strict=True)
    for gradient, shard, own in ([x.grad for x in each] for each in parameters):
        torch.testing.assert_close(shard.full_tensor(), gradient)
        torch.testing.assert_close(own, gradient)

    for weights in (None, "int8"):
        save(sharded, folder / f"sharded {weights}", weights=weights)
        save(whole, folder / f"whole {weights} {rank}", weights=weights)
        ours, theirs = load(folder / f"sharded {weights}"), load(folder / f"whole {weights} {rank}")
        assert type(ours) is type(whole)
        assert torch.equal(ours(tokens), theirs(tokens))


def test_two_ranks_train_as_one_and_save_one_whole_model(tmp_path: Path) -> None:
    multiprocessing.spawn(as_one_of_two, (tmp_path,), nprocs=2)


@pytest.mark.usefixtures("one_rank")
def test_sharded_weights_are_gathered_before_steps(attention: str) -> None:
    model = tiny_model(attention)
    expected = model.generate(temperature=0)
    state = model.prefill(ints(2, 3))[1]
    shard_layers(model)
    steps = (
        *(model.generate, model.stream, partial(model.beam_search, num_beams=2)),
        *(partial(model.prefill, ints(2, 3)), partial(model.step, ints(2), state)),
    )
    for step in steps:
        with pytest.raises(ValueError, match=r"^model: .* unshard"):
            step()
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.unshard()
    assert torch.equal(model.generate(temperature=0), expected)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("blocks_alone", [False, True])
def test_models_of_vectors_say_so_too(blocks_alone: bool) -> None:
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    model = tiny_transformer(cross_attention=True)
    memory = model.remember(x)
    state = model.prefill(x, memory=memory)[1]
    for module in model.blocks if blocks_alone else [model]:
        fully_shard(module)
    for step in (
        partial(model.remember, x),
        partial(model.prefill, x, memory=memory),
        partial(model.step, x[:, 0], state, memory),
    ):
        with pytest.raises(ValueError, match=r"^model: .* unshard"):
            step()
