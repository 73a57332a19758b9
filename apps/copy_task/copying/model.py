"""The model that copies, and the vectors that it starts from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from copying.data import VOCABULARY
from copying.presets import Attention, Recipe
from linattn_models import AutoregressiveTransformer

LONGEST_WAVELENGTH = 200.0  # divided by 2 pi; longer than the sequences


def build_model(recipe: Recipe, attention: Attention) -> AutoregressiveTransformer:
    """A model with random weights, except for the vectors of positions, which start as sinusoids.

    Copying needs to look back by a number of positions that differs from sequence to sequence.
    Sinusoids make such a shift a rotation, the same at all positions; with random vectors each
    position has to be learned by itself. Training may change them. Vectors of tokens start equally
    large.
    """
    model = AutoregressiveTransformer(recipe.transformer(attention), VOCABULARY, recipe.max_length)
    with torch.no_grad():
        model.positions.table.copy_(sinusoids(recipe.max_length, model.config.embed_dim))
        for vectors in model.embeddings.parameters():
            nn.init.normal_(vectors)
    return model


def sinusoids(length: int, embed_dim: int) -> Tensor:
    """Sines and cosines of geometrically spaced wavelengths: (length, embed_dim).

    table[p, 2 i] = sin(p / LONGEST_WAVELENGTH^(2 i / E)), table[p, 2 i + 1] = cos(the same)
    """
    exponent = torch.arange(0, embed_dim, 2) / embed_dim  # (E / 2,)
    angle = torch.arange(length)[:, None] / LONGEST_WAVELENGTH**exponent
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :embed_dim]
