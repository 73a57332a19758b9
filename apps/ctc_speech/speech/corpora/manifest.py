"""Manifests: on each line a recording and its text as JSON, as NeMo and sherpa write them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pydantic
from tqdm import tqdm

from linattn_core.errors import expected, quote
from speech.corpora.corpus import BadInput, Utterance, require_span
from speech.lexicon import read_lines, require_file
from speech.sources import File


class Line(pydantic.BaseModel, strict=True):
    """What is read of a line; other keys are ignored.

    Attributes:
        audio_filepath: from the folder of the manifest.
        offset, duration: seconds of a part; without a duration, it ends with the recording.
        speaker: without one, each recording is one.
    """

    audio_filepath: str
    text: str
    offset: float | None = None
    duration: float | None = None
    speaker: str | int | None = None


def read_manifest(path: Path, bad_input: BadInput, skipped: Counter[str]) -> list[Utterance]:
    """The utterances of a manifest, each named by its line.

    Args:
        bad_input: whether a line that cannot be used is refused, or left out.
        skipped: counts those.
    """
    require_file(path, "a manifest, a JSON object on each line")
    utterances = []
    for place, content in enumerate(tqdm(read_lines(path), path.name, unit="line", disable=None)):
        try:
            if content.strip():
                utterances.append(_read_line(path, f"line {place + 1}", content))
        except (ValueError, OSError):
            if bad_input == "refuse":
                raise
            skipped["lines of the manifest that cannot be used"] += 1
    if not utterances:
        raise ValueError(expected(str(path), "a line that can be used", "none"))
    return utterances


def _read_line(path: Path, number: str, content: str) -> Utterance:
    where = f"{path}, {number}"
    try:
        line = Line.model_validate_json(content)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        got = ": ".join([*map(str, first["loc"][:1]), first["msg"]])
        wanted = "a JSON object with audio_filepath and text"
        raise ValueError(expected(where, wanted, got)) from None
    start = line.offset or 0.0
    end = None if line.duration is None else start + line.duration
    require_span(where, start, end)
    words, audio = tuple(line.text.split()), path.parent / line.audio_filepath
    if not words:
        advice = "leave such lines out with --bad-input skip"
        raise ValueError(expected(where, "words as text", quote(line.text), advice))
    if not _is_file(audio):
        raise FileNotFoundError(expected(where, "a recording", f"no file {quote(str(audio))}"))
    speaker = str(line.audio_filepath if line.speaker is None else line.speaker)
    return Utterance(f"{path.name}, {number}", speaker, File(audio), words, start=start, end=end)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # as of a name that is too long
        return False
