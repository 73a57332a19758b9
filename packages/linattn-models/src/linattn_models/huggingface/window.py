"""A window of softmax beside linear attention, with the state that a cache keeps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from linattn_core import LinearAttentionState
from linattn_core.errors import expected
from linattn_core.feature_maps import Hedgehog
from linattn_models.attention.windows import attend_windows


class WindowedState(NamedTuple):
    """What a layer keeps of all tokens so far; once the window is full, it does not grow.

    Attributes:
        keys: (B, H_kv, P, D), the last keys, at most w of them.
        values: (B, H_kv, P, M), their values.
        mask: (B, P) bool, False at padding; None if there was no mask.
        linear: the sums over all keys before these; None if there are none.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor | None
    linear: LinearAttentionState | None

    @property
    def batch(self) -> int:
        """The number of rows."""
        return self.keys.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        tensors = (self.keys, self.values, *(() if self.mask is None else (self.mask,)))
        window: int = sum(x.numel() * x.element_size() for x in tensors)
        return window + (0 if self.linear is None else self.linear.nbytes)

    def index_select(self, indices: Tensor) -> WindowedState:
        """The rows `indices`, (new batch,) int64, as a copy."""
        indices = indices.to(self.keys.device)
        return WindowedState(
            self.keys.index_select(0, indices), self.values.index_select(0, indices),
            None if self.mask is None else self.mask.index_select(0, indices),
            None if self.linear is None else self.linear.index_select(indices),
        )  # fmt: skip


def windowed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    state: WindowedState | None = None,
    *,
    window_size: int,
    feature_map: Hedgehog,
    log_gamma: Tensor,
) -> tuple[Tensor, WindowedState]:
    """Causal attention: softmax for the last w keys, linear attention for all before them.

        O_i = (sum_W exp(Q_i^T K_j) V_j + g_i sum_L phi(Q_i)^T phi(K_j) V_j)
              / (sum_W exp(Q_i^T K_j) + g_i sum_L phi(Q_i)^T phi(K_j))

    W is i - w < j <= i, and L is j <= i - w: softmax and linear attention share a normalizer, as in
    LoLCATs (Zhang et al. 2025, arXiv 2410.10254). phi is a Hedgehog map with weight A, whose
    features have the same sum for every query. Their weight beside the window grows with the query,
    as that of softmax does:

        g_i = (gamma / 4) sum_f (exp(A Q_i)_f + exp(-A Q_i)_f)

    With gamma = 1 both kinds of weights agree for small queries and keys.

    Args:
        query: (B, H, N, D), with the scale of the scores.
        key, value: (B, H_kv, N, D) and (B, H_kv, N, M).
        mask: (B, N) bool, False at keys that do not exist. They take places in the window, so
            padding is exact at the ends of a row, and not between its tokens.
        state: of all tokens before; None if there are none.
        window_size: w.
        feature_map: phi.
        log_gamma: (H,).

    Returns:
        out (B, H, N, M), and the state after the last key.

    Raises:
        ValueError: the state of another model.

    Cost: O(H N (w (D + M) + F M)) time; O(H N w) memory for the scores of the window.
    """
    if state is not None:
        _check(state, key, value, window_size)
        kept, length = state.keys.shape[2], query.shape[2]
        mask = _join_masks(state.mask, mask, state.batch, kept, length, key.device)
        key, value = torch.cat((state.keys, key), 2), torch.cat((state.values, value), 2)
    out, linear = attend_windows(
        query, key, value, mask, None if state is None else state.linear,
        window_size=window_size, feature_map=feature_map, log_gamma=log_gamma,
    )  # fmt: skip
    # Copies, because views would keep the keys and values of a whole prompt in memory.
    keys, values = (x[:, :, -window_size:].clone() for x in (key, value))
    return out, WindowedState(
        keys, values, None if mask is None else mask[:, -window_size:].clone(), linear
    )


def _join_masks(
    before: Tensor | None, mask: Tensor | None, batch: int, kept: int, length: int,
    device: torch.device,
) -> Tensor | None:  # fmt: skip
    """The mask of a state's keys and of new ones, (B, P + N); None if neither has one."""
    if before is None and mask is None:
        return None
    parts = [
        torch.ones(batch, count, dtype=torch.bool, device=device) if part is None else part
        for part, count in ((before, kept), (mask, length))
    ]
    return torch.cat(parts, 1)


def _check(state: WindowedState, key: Tensor, value: Tensor, size: int) -> None:
    """Refuses a state that does not continue with these keys and values."""
    for name, got, new in (("keys", state.keys, key), ("values", state.values, value)):
        count = got.shape[2]
        fits = count <= size if state.linear is None else count == size
        shape = (*new.shape[:2], count if fits else size, new.shape[3])
        if got.shape != shape:
            advice = "continue with the model and the rows that it comes from"
            wanted = f"{name} of shape {shape}"
            raise ValueError(expected("cache", wanted, tuple(got.shape), advice))
