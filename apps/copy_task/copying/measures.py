"""The loss that a model is trained on, and what is reported: of second halves only."""

from __future__ import annotations

import torch
from torch import Tensor

from copying.data import Duplications, in_second_half
from linattn_models import AutoregressiveTransformer
from linattn_models.training import sum_over_processes, take_share

Batch = dict[str, Tensor]

SEQUENCES_AT_ONCE = 128  # bounds the memory


def copy_loss(model: AutoregressiveTransformer, batch: Batch) -> tuple[Tensor, Tensor]:
    """The sum of -log p in nats over the symbols of the second halves of a batch; their number.

    Of a model that `ContextParallel` has divided, those at this rank's positions.
    """
    tokens = batch["tokens"]
    own = model.own_positions(tokens.shape[1])
    asked = in_second_half(batch["copied"], tokens.shape[1])[:, own]  # (B, N)
    nats = model.head.negative_log_likelihood(model(tokens), tokens[:, own])[asked].sum()
    return nats, asked.sum()


@torch.no_grad()
def copy_measures(model: AutoregressiveTransformer, data: Duplications) -> dict[str, float]:
    """The measures of all of `data`, each symbol predicted from the true ones before it.

    All processes of torchrun must call it: each measures a part.

    Returns:
        "loss", nats per symbol; "accuracy", the share of symbols that are the likeliest guess;
        "sequence_accuracy", the share of sequences in which all of them are.
    """
    sums = torch.zeros(4, dtype=torch.float64)
    own = take_share(torch.arange(len(data)))  # may be empty
    for indices in own.split(SEQUENCES_AT_ONCE) if len(own) else ():
        batch = {name: value.to(model.device) for name, value in data.batch(indices).items()}
        sums += _sums(model, batch)
    nats, right, symbols, whole = sum_over_processes(*sums.tolist())
    return {
        "loss": nats / symbols,
        "accuracy": right / symbols,
        "sequence_accuracy": whole / len(data),
    }


def _sums(model: AutoregressiveTransformer, batch: Batch) -> Tensor:
    """Over a batch: nats, symbols that are right, symbols, and sequences that are right."""
    tokens = batch["tokens"]
    asked = in_second_half(batch["copied"], tokens.shape[1])  # (B, N)
    parameters = model(tokens)  # (B, N, P)
    nats = model.head.negative_log_likelihood(parameters, tokens)  # (B, N)
    right = parameters.argmax(-1) == tokens  # (B, N)
    counts = (nats[asked].double().sum(), right[asked].sum(), asked.sum())
    whole = (right | ~asked).all(1).sum()
    return torch.stack([count.double().cpu() for count in (*counts, whole)])
