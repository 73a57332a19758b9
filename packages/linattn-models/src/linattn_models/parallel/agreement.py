"""What the styles ask before they divide a module."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from linattn_core.distributed.agreement import require_same
from linattn_core.distributed.functional import check_mesh


def require_divisible(module: nn.Module, mesh: DeviceMesh, check: Callable[[], None]) -> None:
    """Calls `check`; what it refuses on one rank, or parameters that differ, all ranks refuse."""
    check_mesh("device_mesh", mesh)
    refusal: ValueError | None = None
    try:
        check()
    except ValueError as error:
        refusal = error
    own = {name: f"{tuple(x.shape)} {x.dtype}" for name, x in module.named_parameters()}
    require_same(mesh.get_group(), own, refusal)
