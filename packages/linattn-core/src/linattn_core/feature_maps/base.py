"""What a feature map is: two functions whose inner product is the similarity of query and key."""

from __future__ import annotations

import operator

from torch import Tensor, nn

from linattn_core.errors import expected, quote


def check_count(name: str, value: object, step: int = 1, advice: str = "") -> int:
    """The value as an int; refuses anything but a positive multiple of `step`."""
    try:
        count = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = -1
    if count < step or count % step:
        wanted = "a positive integer" if step == 1 else f"a positive multiple of {step}"
        raise ValueError(expected(name, wanted, quote(value), advice))
    return count


def check_sizes(
    head_dim: int, num_features: int | None, *, usual: int, step: int
) -> tuple[int, int]:
    """D and F as ints; F is a multiple of `step`, by default `usual` times D."""
    head_dim = check_count("head_dim", head_dim)
    if num_features is None:
        return head_dim, usual * head_dim
    advice = f"pass for example num_features={usual * head_dim}"
    return head_dim, check_count("num_features", num_features, step, advice)


class FeatureMap(nn.Module):
    """phi of the paper's equation 4: sim(q, k) = phi(q) . phi(k).

    A subclass implements `queries`, `keys` and `feature_dim`. Both functions act on the last
    dimension of a (B, H, N, D) tensor, position by position, so that a sequence may be processed
    whole, in chunks or step by step.

    Attributes:
        pointwise: "elu", "relu" or "identity" where this map is the one of that name, which the
            kernels apply themselves; None where it is applied before the kernels.
        scales_queries: whether each query's features have a factor of their own, which only the
            division by the normalizer cancels. Numerator and normalizer alone then mean nothing.
    """

    pointwise: str | None = None
    scales_queries: bool = False

    def queries(self, x: Tensor) -> Tensor:
        """phi(x) for queries: (B, H, N, D) -> (B, H, N, F)."""
        raise NotImplementedError(f"{type(self).__name__} must implement queries(x).")

    def keys(self, x: Tensor) -> Tensor:
        """phi(x) for keys: (B, H, N, D) -> (B, H, N, F); the queries' map unless overridden."""
        return self.queries(x)

    def feature_dim(self, head_dim: int) -> int:
        """F for a head dim D."""
        raise NotImplementedError(f"{type(self).__name__} must implement feature_dim(head_dim).")

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Both sides at once: (phi(query), phi(key))."""
        return self.queries(query), self.keys(key)

    def _refuse(self, x: Tensor, wanted: str) -> ValueError:
        got = f"inputs of shape {tuple(x.shape)}"
        return ValueError(expected(type(self).__name__, wanted, got, "build a map for them"))
