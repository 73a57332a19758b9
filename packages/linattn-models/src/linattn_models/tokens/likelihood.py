"""Log-probabilities of sequences under a model of tokens, and its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_core.values import can_be_read
from linattn_models.basics.packing import past_lengths
from linattn_models.basics.validation import lengths_within, wrong_shape
from linattn_models.heads import Head
from linattn_models.heads.base import check_batch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


# The label of a token that does not count, as in torch and transformers.
IGNORED = -100


class Likelihood:
    """Gives `log_probs` and `loss` to a module that maps tokens (B, N) to parameters (B, N, P).

    Attributes:
        mesh: set by `ContextParallel`: the ranks that each hold a part of the length.
    """

    head: Head
    mesh: DeviceMesh | None = None

    def own_positions(self, length: int) -> slice:
        """The positions of this rank in sequences of so many: all, without `ContextParallel`.

        The parts are as equal as can be.
        """
        if self.mesh is None:
            return slice(0, length)
        rank, ranks = self.mesh.get_local_rank(), self.mesh.size()
        return slice(length * rank // ranks, length * (rank + 1) // ranks)

    def log_probs(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """log p of every token given those before it, all in parallel.

        Args:
            tokens: (B, N) int64, or (B, N, 3).
            lengths: (B,) int in 0..N, each sequence's own length; all N by default. Tokens at or
                past it are ignored and may have any value, such as -1 after a stop token.

        Returns:
            (B, N) nats, the sum over channels; 0 beyond a sequence's length. Of a model that
            `ContextParallel` has divided, those of this rank's positions.

        Raises:
            ValueError, TypeError: another shape, dtype, length or value.
        """
        check_batch(self.head, tokens)
        own = self.own_positions(tokens.shape[1])
        return log_probs_under(self.head, cast(Any, self), tokens, lengths, own)

    def loss(
        self, tokens: Tensor, lengths: Tensor | None = None, loss_mask: Tensor | None = None
    ) -> Tensor:
        """The mean of -log p in nats per dimension (token and channel), a scalar.

        Divide by log(2) for bits per dimension. Of a model that `ContextParallel` has divided, it
        is this rank's share: the shares of all ranks add up to the mean.

        Args:
            tokens, lengths: as for `log_probs`; tokens beyond the lengths do not count.
            loss_mask: (B, N) bool, False at tokens that do not count, such as those of a prompt; or
                labels as in transformers, which are the tokens, but -100 where they do not count.

        Raises:
            ValueError, TypeError: as for `log_probs`; labels that are not the tokens, or no token
                that counts.
        """
        log_probs = self.log_probs(tokens, lengths)
        if loss_mask is not None:
            counted = read_loss_mask(tokens, lengths, loss_mask)
            own = self.own_positions(tokens.shape[1])
            return mean_loss(self.head, log_probs.masked_fill(~counted[:, own], 0.0), counted)
        count = tokens.shape[0] * tokens.shape[1] if self.mesh is not None else None
        return mean_loss(self.head, log_probs, lengths, count)


def log_probs_under(
    head: Head,
    model: Callable[[Tensor], Tensor],
    tokens: Tensor,
    lengths: Tensor | None,
    own: slice = slice(None),
) -> Tensor:
    """`Likelihood.log_probs` of a model from tokens (B, N) to a head's parameters.

    The parameters are those of all positions, (B, N, P), or of the own ones alone.
    """
    if lengths is None:
        return -head.negative_log_likelihood(model(tokens), tokens[:, own])
    lengths_within("lengths", lengths, *tokens.shape[:2])
    beyond = past_lengths(lengths.to(tokens.device), tokens.shape[1])  # (B, N)
    known = tokens.masked_fill(beyond.view(*beyond.shape, *[1] * (tokens.ndim - 2)), 0)
    return log_probs_under(head, model, known, None, own).masked_fill(beyond[:, own], 0.0)


def read_loss_mask(tokens: Tensor, lengths: Tensor | None, loss_mask: Tensor) -> Tensor:
    """(B, N) bool on the device of the tokens, True at those that count."""
    if not isinstance(loss_mask, Tensor) or loss_mask.dtype not in (torch.bool, torch.int64):
        got = getattr(loss_mask, "dtype", type(loss_mask).__name__)
        raise TypeError(expected("loss_mask", "a tensor of torch.bool, or of labels", got))
    if loss_mask.is_nested or loss_mask.shape != tokens.shape[:2]:
        raise wrong_shape("loss_mask", f"{tuple(tokens.shape[:2])}", loss_mask)
    loss_mask = loss_mask.to(tokens.device)
    is_mask = loss_mask.dtype == torch.bool
    counted = loss_mask if is_mask else loss_mask != IGNORED
    if lengths is not None:
        counted = counted & ~past_lengths(lengths.to(counted.device), counted.shape[1])
    if not is_mask and can_be_read(loss_mask):
        _check_labels(tokens, loss_mask, counted)
    return counted


def _check_labels(tokens: Tensor, labels: Tensor, counted: Tensor) -> None:
    """Refuses labels that are not the tokens, such as a mask of integers, or shifted ones."""
    other = counted if tokens.ndim > 2 else counted & (labels != tokens)
    if bool(other.any()):
        wanted = f"the tokens, or {IGNORED} where they do not count"
        got, advice = f"also {int(labels[other][0])}", "pass a mask as torch.bool, labels unshifted"
        raise ValueError(expected("loss_mask", wanted, got, advice))


def mean_loss(
    head: Head, log_probs: Tensor, counts: Tensor | None, tokens: int | None = None
) -> Tensor:
    """`Likelihood.loss` of what `log_probs` returned.

    Args:
        counts: numbers whose sum is that of the tokens that count; None where all do.
        tokens: the number of those of all ranks.
    """
    if counts is None:
        if tokens is not None:
            return -log_probs.sum() / (tokens * head.channels)
        return -log_probs.mean() / head.channels
    count = counts.sum().to(log_probs.device)
    if can_be_read(count) and not count:
        raise ValueError(expected("lengths", "one token at least that counts", "none"))
    return -log_probs.sum() / (count * head.channels)
