"""Pictures of one's own: the PNG and JPEG files of one folder, by Pillow.

Each becomes a square of bytes. What would change a picture silently is refused: 16 bits, CMYK and
transparency, links and subfolders, pictures to enlarge. Hidden files are left out; so are files
with other endings, with a warning.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from tqdm import tqdm

from linattn_core.errors import expected, quote
from linattn_models.basics.memory import available_memory
from linattn_models.basics.validation import at_least, boolean, one_of
from pixels.datasets.images import FolderSettings, Images, Pixels, hold_out_the_end

ENDINGS = (".png", ".jpg", ".jpeg")
FORMATS = ("PNG", "JPEG")
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")
FEWEST = 3  # one each to train, to validate, to test
MOST_PIXELS = 1 << 26  # of a picture that is decoded


def load(folder: Path, settings: FolderSettings) -> Images:
    """The pictures of a folder: a tenth for the test, a tenth of the others for validation.

    Raises:
        ValueError: what is wrong with the settings, the folder or a picture, by its name.
    """
    at_least("--size", settings.size, 2)
    one_of("--fit", settings.fit, ("crop", "pad"))
    boolean("--color", settings.color)
    at_least("--split-seed", settings.split_seed, 0)
    paths = find_pictures(folder, settings.split_seed)
    shape = (len(paths), settings.size, settings.size, 3)[: 3 + settings.color]
    needed, free = math.prod(shape), available_memory(torch.device("cpu"))
    if needed > free:
        wanted = f"a size whose {len(paths):,} pictures fit into {free / 1e9:.1f} GB of free memory"
        raise ValueError(expected("--size", wanted, f"{settings.size}, {needed / 1e9:.1f} GB"))
    pixels = np.empty(shape, np.uint8)
    for place, path in enumerate(tqdm(paths, "reading", unit=" pictures", disable=None)):
        pixels[place] = read_picture(path, settings)
    train, test = hold_out_the_end(pixels)
    train, validation = hold_out_the_end(train)
    return Images("folder", train, validation, test, 256, settings)


def find_pictures(folder: Path, seed: int) -> list[Path]:
    """The pictures of a folder, in a random order that the seed and their names alone decide.

    Two pictures keep their order when others are added: few move from one part to another.
    """
    visible = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for path in visible:
        if path.is_symlink() or not path.is_file():
            got = "a link" if path.is_symlink() else "a folder" if path.is_dir() else "a device"
            wanted = f"a file in {folder}, as no other folder is read"
            raise ValueError(expected(str(path), wanted, got, "copy its pictures into the folder"))
    paths = [path for path in visible if path.suffix.lower() in ENDINGS]
    if others := sorted({*visible} - {*paths}):
        got = f"{len(others):,} others, which are left out, such as {quote(others[0].name)}"
        wanted = f"names that end in {', '.join(ENDINGS)}"
        warnings.warn(expected(str(folder), wanted, got), stacklevel=2)
    if len(paths) < FEWEST:
        wanted = f"{FEWEST} pictures or more ({', '.join(ENDINGS)})"
        raise ValueError(expected(str(folder), wanted, len(paths) or "none"))

    def number(path: Path) -> bytes:
        return hashlib.sha256(b"%d/" % seed + os.fsencode(path.name)).digest()

    return sorted(paths, key=number)


def read_picture(path: Path, settings: FolderSettings) -> Pixels:
    """A picture as a square (size, size) or (size, size, 3)."""
    picture = _decode(path, settings.size)
    if picture.mode not in MODES:
        advice = "save it as RGB with 8 bits a color"
        raise ValueError(expected(str(path), "gray or RGB, 8 bits", f"{picture.mode!r}", advice))
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        if picture.getchannel("A").getextrema() != (255, 255):
            advice = "put it on a background"
            raise ValueError(expected(str(path), "an opaque picture", "transparent pixels", advice))
    colors, size = picture.convert("RGB" if settings.color else "L"), settings.size
    if settings.fit == "crop" and min(colors.size) < size:
        wanted, got = f"{size} pixels or more each way", "{}x{}".format(*colors.size)
        advice = "choose a smaller --size or --fit pad"
        raise ValueError(expected(str(path), wanted, got, advice))
    if settings.fit == "crop":
        return np.asarray(ImageOps.fit(colors, (size, size)))
    colors.thumbnail((size, size))  # which does not enlarge
    square = Image.new(colors.mode, (size, size))
    square.paste(colors, ((size - colors.width) // 2, (size - colors.height) // 2))
    return np.asarray(square)


def _decode(path: Path, size: int) -> Image.Image:
    """The upright picture, or for a JPEG a smaller one that is large enough."""
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(path, formats=FORMATS) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise ValueError(f"{picture.width:,}x{picture.height:,} pixels")
            picture.draft(None, (2 * size, 2 * size))
            return ImageOps.exif_transpose(picture)
    except Exception as error:  # Pillow raises a dozen kinds for damaged bytes
        wanted = f"a whole PNG or JPEG of {MOST_PIXELS:,} pixels or less"
        got = f"a fault in it ({error})"
        raise ValueError(expected(str(path), wanted, got, "replace or remove it")) from error
