"""Images side by side in one PNG, enlarged without blurring, under a title.

Each pixel of an 8x8 digit has to be seen as a square: it becomes a block of one color, and
matplotlib only writes the text above the blocks.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from linattn_models import AutoregressiveTransformer
from linattn_models.basics.files import replace_file
from linattn_models.decoding import choose_method
from pixels.datasets import Images, Pixels
from pixels.sampling import Draw, complete_images, sample_images
from pixels.tokens import Layout

AT_ONCE = 16  # images that are drawn side by side, and then kept
DPI = 100
GAP = 4  # between images, in pixels of the picture
LINE = 20  # height of a line of text
BACKGROUND = (205, 211, 222)  # pale blue: unlike both black and white pixels
HIDDEN = (66, 99, 160)  # blue, in no gray image: pixels that the model does not see
SHOWN = Draw(progress=True)

Colors = npt.NDArray[np.uint8]


def write_samples(
    path: Path,
    model: AutoregressiveTransformer,
    images: Images,
    count: int,
    label: str,
    *,
    draw: Draw = SHOWN,
) -> Pixels:
    """A square of `count` images of the size of `images` that the model draws; returns them.

    They are drawn in parts, and written after each: what is there when it is interrupted stays.
    """
    made = images.test[:0]
    for seeds in draw.seeds(count).split(AT_ONCE):
        drawn = sample_images(model, seeds, images.height, images.width, draw)
        made = np.concatenate([made, drawn])
        write_grid(path, square_rows(to_colors(made, images.levels)), f"samples: {label}")
    return made


def write_completions(
    path: Path,
    model: AutoregressiveTransformer,
    images: Images,
    layout: Layout,
    count: int,
    copies: int,
    label: str,
    *,
    last: str = "original",
    draw: Draw = SHOWN,
) -> None:
    """A row for each of `count` test images: its upper half, `copies` completions, the image.

    `last` is the title of the last column. The picture is written in parts, as `write_samples`.
    """
    shown, rows = images.height // 2, list[list[Colors]]()
    columns = [(0, "half hidden"), (1, "completed"), (1 + copies, last)]
    originals = images.test[:count]
    for seeds in draw.seeds(len(originals), copies).split(max(1, AT_ONCE // copies)):
        known = originals[len(rows) : len(rows) + len(seeds)]
        completed = complete_images(model, known, seeds, layout, rows_shown=shown, draw=draw)
        whole = to_colors(known, images.levels)
        guesses = to_colors(completed.reshape(-1, *known.shape[1:]), images.levels)
        guesses = guesses.reshape(*seeds.shape, *guesses.shape[1:])
        rows += completion_rows(hide_below(whole, shown), guesses, whole)
        write_grid(path, rows, f"completions: {label}", columns)


def affordable_samples(model: AutoregressiveTransformer, images: Images) -> int:
    """As many samples as a laptop makes in about a minute, 64 at most."""
    if choose_method(model, "auto") == "rerun":  # the cost is half the square of the pixels
        return max(1, min(64, 2**19 // images.dimensions**2))
    return max(4, min(64, 16_384 // images.dimensions))


def to_colors(images: Pixels, levels: int) -> Colors:
    """Images (n, H, W, 3) on the scale 0 .. 255, whatever number of levels they had."""
    scaled = np.rint(images * (255.0 / (levels - 1))).astype(np.uint8)
    return scaled if scaled.ndim == 4 else np.repeat(scaled[..., None], 3, axis=-1)


def hide_below(colors: Colors, row: int) -> Colors:
    """A copy whose rows from `row` on are painted over."""
    painted = colors.copy()
    painted[:, row:] = HIDDEN
    return painted


def square_rows(colors: Colors) -> list[list[Colors]]:
    """Images laid out in rows, about as many of them as there are in each."""
    across = int(np.ceil(np.sqrt(len(colors))))
    return [list(colors[start : start + across]) for start in range(0, len(colors), across)]


def completion_rows(occluded: Colors, completed: Colors, original: Colors) -> list[list[Colors]]:
    """Rows of one image each: occluded (n, ...), its completions (n, copies, ...), original."""
    together = zip(occluded, completed, original, strict=True)
    return [[hidden, *tries, whole] for hidden, tries, whole in together]


def tile(rows: Sequence[Sequence[Colors]], scale: int) -> Colors:
    """One canvas (height, width, 3) of the images in `rows`, each pixel `scale` pixels wide."""
    height, width = rows[0][0].shape[0] * scale, rows[0][0].shape[1] * scale
    across = max(len(row) for row in rows)
    shape = (len(rows) * (height + GAP) - GAP, across * (width + GAP) - GAP, 3)
    canvas = np.full(shape, BACKGROUND, np.uint8)
    for down, row in enumerate(rows):
        for right, image in enumerate(row):
            top, left = down * (height + GAP), right * (width + GAP)
            block = image.repeat(scale, axis=0).repeat(scale, axis=1)
            canvas[top : top + height, left : left + width] = block
    return canvas


def enlargement(height: int) -> int:
    """The scale at which an image of `height` rows becomes about 56 pixels high."""
    return max(1, round(56 / height))


def write_grid(
    path: Path,
    rows: Sequence[Sequence[Colors]],
    title: str,
    column_titles: Sequence[tuple[int, str]] = (),
) -> None:
    """Writes the images in `rows` as a PNG.

    Args:
        path: the file; written whole or not at all.
        rows: images (H, W, 3) of one size, row by row.
        title: a line above everything.
        column_titles: (first column, words) pairs, set above the columns they begin at.
    """
    scale = enlargement(rows[0][0].shape[0])
    canvas = tile(rows, scale)
    head = LINE * (2 if column_titles else 1) + 2 * GAP
    width = max(canvas.shape[1], 7 * len(title)) + 2 * GAP  # 7: a letter of the title, at most
    height = canvas.shape[0] + head + GAP
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
    figure.figimage(canvas, xo=GAP, yo=GAP, origin="upper")
    _write(figure, GAP, GAP + LINE / 2, title, size=9)
    step = rows[0][0].shape[1] * scale + GAP
    for column, words in column_titles:
        _write(figure, GAP + column * step, GAP + LINE * 1.5, words, size=7)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=DPI)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content.getvalue())


def _write(figure: Figure, left: float, top: float, words: str, size: int) -> None:
    width, height = figure.get_size_inches() * DPI
    figure.text(left / width, 1 - top / height, words, fontsize=size, va="center", ha="left")
