"""Meshes that cannot divide one sequence, refused in a process of its own group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from linattn_core.distributed import context_parallel_attention
from linattn_models.parallel import sum_gradients
from tests.models.tiny import tiny_model


@pytest.fixture
def two_dimensions() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "context"))
    finally:
        dist.destroy_process_group()


def test_a_mesh_has_one_dimension(two_dimensions: DeviceMesh) -> None:
    x = torch.zeros(1, 1, 3, 2)
    with pytest.raises(ValueError, match=r"^mesh: expected one dimension"):
        context_parallel_attention(x, x, x, mesh=two_dimensions)
    with pytest.raises(ValueError, match=r"^mesh: expected one dimension"):
        sum_gradients(tiny_model(), two_dimensions)


@pytest.mark.parametrize("mesh", [None, "context", 1])
def test_a_mesh_is_a_mesh(mesh: Any) -> None:
    x = torch.zeros(1, 1, 3, 2)
    with pytest.raises(TypeError, match=r"^mesh: expected a DeviceMesh"):
        context_parallel_attention(x, x, x, mesh=mesh)
