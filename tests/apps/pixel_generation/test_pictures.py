"""Pictures show each pixel as a block of its color, where it belongs, and are whole or absent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.image import imread

from pixels.pictures import (
    BACKGROUND,
    GAP,
    Colors,
    completion_rows,
    hide_below,
    square_rows,
    tile,
    to_colors,
    write_grid,
)


def random_colors(count: int, height: int = 3, width: int = 2) -> Colors:
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def test_levels_span_black_to_white() -> None:
    ramp = np.arange(17, dtype=np.uint8).reshape(1, 1, 17)
    colors = to_colors(ramp, levels=17)
    assert colors.shape == (1, 1, 17, 3)
    assert colors[0, 0, 0].tolist() == [0, 0, 0]
    assert colors[0, 0, 16].tolist() == [255, 255, 255]
    assert (np.diff(colors[0, 0, :, 0].astype(int)) >= 15).all()


def test_tiles_hold_the_images_enlarged() -> None:
    images, scale = random_colors(5), 3
    canvas = tile([list(images[:3]), list(images[3:])], scale)
    for number, image in enumerate(images):
        top, left = (number // 3) * (9 + GAP), (number % 3) * (6 + GAP)
        block = canvas[top : top + 9, left : left + 6]
        for offset in (0, scale - 1):  # both ends of every block
            np.testing.assert_array_equal(block[offset::scale, offset::scale], image)
    assert (canvas[9 + GAP :, 2 * (6 + GAP) :] == BACKGROUND).all()  # the place of a sixth


def test_a_row_of_completions_begins_occluded_and_ends_original() -> None:
    whole = random_colors(2)
    tries = np.stack([random_colors(3), random_colors(3)])
    rows = completion_rows(hide_below(whole, 1), tries, whole)
    assert [len(row) for row in rows] == [5, 5]
    np.testing.assert_array_equal(rows[1][-1], whole[1])
    np.testing.assert_array_equal(rows[0][2], tries[0, 1])


def test_the_png_holds_the_canvas_pixel_for_pixel(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "grid.png"
    rows = square_rows(random_colors(4, height=8, width=8))
    write_grid(path, rows, "title", [(0, "left"), (1, "right")])
    canvas = tile(rows, scale=7)
    picture = np.rint(imread(path)[..., :3] * 255).astype(np.uint8)
    height, width = canvas.shape[:2]
    found = picture[-GAP - height : -GAP, GAP : GAP + width]
    np.testing.assert_array_equal(found, canvas)
    words = picture[: -GAP - height]
    assert (words < 128).any()  # something is written above
    assert [file.name for file in path.parent.iterdir()] == ["grid.png"]
