"""Random features: FAVOR+ for the softmax kernel, random Fourier features for the RBF kernel."""

from __future__ import annotations

import math
from functools import partial
from numbers import Real

import torch
from torch import Tensor

from linattn_core.autocast import without_autocast
from linattn_core.errors import expected, quote
from linattn_core.feature_maps.base import FeatureMap, check_sizes
from linattn_core.state import accumulation_dtype


def _orthogonal_gaussian(rows: int, columns: int, generator: torch.Generator | None) -> Tensor:
    """(rows, columns): orthogonal directions within each block, lengths of Gaussian rows."""
    gaussian = partial(torch.randn, generator=generator, dtype=torch.float64, device="cpu")
    blocks = []
    for start in range(0, rows, columns):
        q, r = torch.linalg.qr(gaussian(columns, columns))
        # Q times the signs of R's diagonal is uniform over the orthogonal matrices; Q alone is not.
        blocks.append((q * r.diagonal().sign())[: rows - start])
    lengths: Tensor = torch.linalg.vector_norm(gaussian(rows, columns), dim=1)
    directions: Tensor = torch.cat(blocks)
    return directions * lengths[:, None]


class RandomFeatures(FeatureMap):
    """What the random maps share: a projection that is drawn once, and again only by `redraw`.

    The projection is a buffer, saved and loaded with the model, so that a trained model keeps the
    features that it was trained with.

    Args:
        head_dim: D.
        num_projections: rows of the projection.
        generator: CPU generator for the draw; None for torch's default one.
    """

    projection: Tensor

    def __init__(
        self, head_dim: int, num_projections: int, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        dtype = accumulation_dtype(torch.get_default_dtype())
        self.register_buffer("projection", torch.empty(num_projections, head_dim, dtype=dtype))
        self.redraw(generator)

    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draws a new projection in place; states that were summed with the old one are invalid.

        On the meta device nothing is drawn.
        """
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(expected("generator", "a torch.Generator or None", quote(generator)))
        if self.projection.is_meta:
            return
        rows, columns = self.projection.shape
        self.projection.copy_(_orthogonal_gaussian(rows, columns, generator))

    def _project(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.projection.shape[1]:
            raise self._refuse(x, f"head dim {self.projection.shape[1]}")
        # Autocast would multiply in half precision, and exp and sin would magnify its rounding.
        with without_autocast(x.device.type):
            return x @ self.projection.to(x).T  # (..., N, rows)


class Favor(RandomFeatures):
    """Positive random features of the softmax kernel (FAVOR+, Choromanski et al. 2021).

        phi(x) = exp(w x' - |x'|^2 / 2) / sqrt(F),   x' = x / D^(1/4),   w ~ N(0, 1)
        E[phi(q) . phi(k)] = exp(q . k / sqrt(D))

    The features of each query are divided by the largest of them, so that none overflows; the
    normalizer cancels that factor, except for eps. Keys are not scaled, because a scale for all
    keys would let later keys change earlier outputs. Computed in float32 at least.

    Args:
        head_dim: D.
        num_features: F; 4 D by default. The error falls as 1 / sqrt(F).
        generator: CPU generator for the draw; None for torch's default one.
    """

    scales_queries = True

    def __init__(
        self,
        head_dim: int,
        num_features: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        head_dim, num_features = check_sizes(head_dim, num_features, usual=4, step=1)
        super().__init__(head_dim, num_features, generator)

    def _exponent(self, x: Tensor) -> Tensor:
        x = x.to(accumulation_dtype(x.dtype)) / x.shape[-1] ** 0.25
        return self._project(x) - 0.5 * x.square().sum(-1, keepdim=True)

    def queries(self, x: Tensor) -> Tensor:
        exponent = self._exponent(x)
        largest = exponent.amax(-1, keepdim=True)
        return torch.exp(exponent - largest) / math.sqrt(self.projection.shape[0])

    def keys(self, x: Tensor) -> Tensor:
        return torch.exp(self._exponent(x)) / math.sqrt(self.projection.shape[0])

    def feature_dim(self, head_dim: int) -> int:
        return self.projection.shape[0]


class RandomFourier(RandomFeatures):
    """Random Fourier features of the RBF kernel (Rahimi and Recht 2007; Peng et al. 2021).

        phi(x) = [sin(w x), cos(w x)] / sqrt(F / 2),   w ~ N(0, 1 / lengthscale^2)
        E[phi(q) . phi(k)] = exp(-|q - k|^2 / (2 lengthscale^2))

    Features may be negative, so a denominator can come near zero when a query is far from every
    key: scale queries and keys to the lengthscale.

    Args:
        head_dim: D.
        num_features: F, even; 4 D by default.
        lengthscale: of the kernel; D^(1/4) by default, which matches softmax's temperature.
        generator: CPU generator for the draw; None for torch's default one.
    """

    def __init__(
        self,
        head_dim: int,
        num_features: int | None = None,
        lengthscale: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        head_dim, num_features = check_sizes(head_dim, num_features, usual=4, step=2)
        self_lengthscale = head_dim**0.25 if lengthscale is None else lengthscale
        real = isinstance(self_lengthscale, Real) and not isinstance(self_lengthscale, bool)
        if not real or not 0 < self_lengthscale < math.inf:
            wanted = "a finite number above 0"
            raise ValueError(expected("lengthscale", wanted, quote(lengthscale)))
        super().__init__(head_dim, num_features // 2, generator)
        self.lengthscale = self_lengthscale

    def queries(self, x: Tensor) -> Tensor:
        angles = self._project(x.to(accumulation_dtype(x.dtype)) / self.lengthscale)
        features = torch.cat((angles.sin(), angles.cos()), -1)
        return features / math.sqrt(self.projection.shape[0])

    def feature_dim(self, head_dim: int) -> int:
        return 2 * self.projection.shape[0]
