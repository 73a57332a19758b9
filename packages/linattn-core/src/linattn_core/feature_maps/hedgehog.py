"""Hedgehog: a learned map, trained to give weights as concentrated as those of softmax."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_core.feature_maps.base import FeatureMap, check_count, check_sizes


class Hedgehog(FeatureMap):
    """phi(x) = [softmax(W x), softmax(-W x)] with learned W (Zhang et al. 2024), F = 2 F'.

    Queries have one W and keys another, shared by all heads or one per head, (D, F'). W starts as
    the first F' columns of the identity, so an untrained map already gives positive features.

    Args:
        head_dim: D.
        num_features: F, even; 2 D by default.
        num_heads: H for one W per head; None shares W among the heads.
        num_kv_heads: H_kv, the heads of keys, beside a num_heads; None for H.
    """

    def __init__(
        self,
        head_dim: int,
        num_features: int | None = None,
        num_heads: int | None = None,
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        head_dim, num_features = check_sizes(head_dim, num_features, usual=2, step=2)
        start = torch.eye(num_features // 2, head_dim).T.contiguous()  # (D, F')
        query = key = start
        if num_heads is not None:
            query = start.expand(check_count("num_heads", num_heads), -1, -1)
            kv_heads = num_heads if num_kv_heads is None else num_kv_heads
            key = start.expand(check_count("num_kv_heads", kv_heads), -1, -1)
        elif num_kv_heads is not None:
            raise ValueError(expected("num_kv_heads", "None without num_heads", num_kv_heads))
        self.query_weight = nn.Parameter(query.clone())
        self.key_weight = nn.Parameter(key.clone())

    def _map(self, x: Tensor, weight: Tensor) -> Tensor:
        if x.shape[-1] != weight.shape[-2]:
            raise self._refuse(x, f"head dim {weight.shape[-2]}")
        if weight.ndim == 3 and x.shape[-3] != weight.shape[0]:
            raise self._refuse(x, f"{weight.shape[0]} heads")
        projected = x @ weight.to(x)  # (B, H, N, F')
        return torch.cat((projected.softmax(-1), (-projected).softmax(-1)), -1)

    def queries(self, x: Tensor) -> Tensor:
        return self._map(x, self.query_weight)

    def keys(self, x: Tensor) -> Tensor:
        return self._map(x, self.key_weight)

    def feature_dim(self, head_dim: int) -> int:
        return 2 * self.query_weight.shape[-1]
