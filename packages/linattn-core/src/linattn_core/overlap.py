"""Whether the numbers of a state share memory, which a step in place would write twice."""

from __future__ import annotations

import functools

import torch

from linattn_core.errors import expected
from linattn_core.state import LinearAttentionState


def check_own_memory(state: LinearAttentionState) -> None:
    """Refuses a state that has two numbers in one place; steps in place pass here each time."""
    s, z = state
    distance = z.data_ptr() - s.data_ptr()
    if s.is_contiguous() and z.is_contiguous():
        shared = -z.nbytes < distance < s.nbytes
    else:
        shared = _share(s.shape, s.stride(), z.stride(), s.itemsize, distance)
    if shared:
        wanted = "memory of its own for each number"
        got = f"shared memory: s with strides {s.stride()}, z with {z.stride()}"
        raise ValueError(expected("the state", wanted, got, "make it by .clone()"))


_Layout = tuple[tuple[int, ...], tuple[int, ...]]


@functools.lru_cache(maxsize=256)
def _share(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    z_strides: tuple[int, ...],
    itemsize: int,
    distance: int,
) -> bool:
    """The same for a state of any strides; z begins `distance` bytes after s."""
    # In bytes: the last dim is a number's own.
    s = ((*shape, itemsize), (*(itemsize * x for x in strides), 1))
    z = ((*shape[:-1], itemsize), (*(itemsize * x for x in z_strides), 1))
    return _repeats(s) or _repeats(z) or _meet(s, z, distance)


def _extent(layout: _Layout) -> int:
    """Bytes from the first number to the end of the last."""
    last = sum((n - 1) * stride for n, stride in zip(*layout, strict=True))
    return 0 if 0 in layout[0] else last + 1


@functools.lru_cache(maxsize=256)
def _repeats(layout: _Layout) -> bool:
    """Whether a tensor has two numbers in one place."""
    sizes, strides = layout
    if 0 in sizes:
        return False
    if any(n > 1 and not stride for n, stride in zip(sizes, strides, strict=True)):
        return True
    if _nests(layout):
        return False
    taken = torch.zeros(_extent(layout), dtype=torch.bool, device="cpu")
    taken.as_strided(sizes, strides).fill_(True)
    return int(taken.count_nonzero()) < torch.Size(sizes).numel()


def _nests(layout: _Layout) -> bool:
    """Whether every dim steps over all that the dims with smaller strides reach."""
    reached = 1
    for stride, n in sorted((stride, n) for n, stride in zip(*layout, strict=True) if n > 1):
        if stride < reached:
            return False
        reached += (n - 1) * stride
    return True


def _without_rows(s: _Layout, z: _Layout, distance: int) -> tuple[_Layout, _Layout]:
    """Both less the outer dims that they share, of which each row is apart from the next."""
    while s[0][0] == z[0][0] and s[1][0] == z[1][0]:
        inner_s, inner_z = ((sizes[1:], strides[1:]) for sizes, strides in (s, z))
        if not inner_s[0] or not inner_z[0]:
            break
        first, end = min(0, distance), max(_extent(inner_s), distance + _extent(inner_z))
        if s[1][0] < end - first:
            break
        s, z = inner_s, inner_z
    return s, z


def _meet(layout: _Layout, other: _Layout, distance: int) -> bool:
    """Whether two tensors, each without repetitions, have a number in one place."""
    layout, other = _without_rows(layout, other, distance)
    if not -_extent(other) < distance < _extent(layout):
        return False
    first, second = max(0, -distance), max(0, distance)
    size = max(first + _extent(layout), second + _extent(other))
    taken = torch.zeros(size, dtype=torch.bool, device="cpu")
    taken.as_strided(*layout, first).fill_(True)
    return bool(taken.as_strided(*other, second).any())
