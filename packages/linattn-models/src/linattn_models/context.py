"""Which positions of a sequence are a rank's own, where `ContextParallel` divides a module."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh


def own_positions(mesh: DeviceMesh | None, length: int) -> slice:
    """The positions of this rank, as equal parts as can be; without a mesh all of them."""
    if mesh is None:
        return slice(0, length)
    rank, ranks = mesh.get_local_rank(), mesh.size()
    return slice(length * rank // ranks, length * (rank + 1) // ranks)
