"""The two pictures of a model: what it makes from nothing, and how it completes what it sees."""

from __future__ import annotations

from pathlib import Path

from image_grids import completion_rows, hide_below, square_rows, to_colors, write_grid
from pixel_datasets import Images
from pixel_sampling import complete_images, sample_images, way_of
from pixel_tokens import Layout

from linattn_models import AutoregressiveTransformer


def write_samples(
    path: Path,
    model: AutoregressiveTransformer,
    images: Images,
    count: int,
    label: str,
    *,
    temperature: float = 1.0,
    seed: int = 0,
) -> None:
    """A square of `count` images that the model makes from nothing."""
    made = sample_images(
        model,
        count,
        images.height,
        images.width,
        temperature=temperature,
        seed=seed,
        progress=True,
    )
    write_grid(path, square_rows(to_colors(made, images.levels)), f"samples: {label}")


def write_completions(
    path: Path,
    model: AutoregressiveTransformer,
    images: Images,
    layout: Layout,
    count: int,
    copies: int,
    label: str,
    *,
    temperature: float = 1.0,
    seed: int = 0,
) -> None:
    """A row for each of `count` test images: its upper half, `copies` completions, the original."""
    originals = images.test[:count]
    shown = images.height // 2
    completed = complete_images(
        model,
        originals,
        copies,
        layout,
        rows_shown=shown,
        temperature=temperature,
        seed=seed,
        progress=True,
    )
    whole = to_colors(originals, images.levels)
    guesses = to_colors(completed.reshape(-1, *originals.shape[1:]), images.levels)
    guesses = guesses.reshape(len(originals), copies, *guesses.shape[1:])
    rows = completion_rows(hide_below(whole, shown), guesses, whole)
    columns = [(0, "occluded"), (1, "completed"), (1 + copies, "original")]
    write_grid(path, rows, f"completions: {label}", columns)


def affordable_samples(model: AutoregressiveTransformer, images: Images) -> int:
    """As many samples as a laptop makes in about a minute, 64 at most."""
    if way_of(model) == "rerun":  # all pixels before, for each pixel: half the square of them
        return max(1, min(64, 2**19 // images.dimensions**2))
    return max(4, min(64, 16_384 // images.dimensions))
