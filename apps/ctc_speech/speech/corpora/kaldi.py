"""Kaldi data folders: how users of WSJ, TIMIT and LibriSpeech have theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from linattn_core.errors import expected, quote
from speech.corpora.corpus import SPLITS, Split, Utterance, require_span
from speech.lexicon import read_lines, require_file
from speech.sources import Ark, Command, File, Source

OFFSET_DIGITS = 18  # at most, so that it is an offset of a file


def load_kaldi(folder: Path, *, run_commands: bool = False) -> dict[Split, list[Utterance]]:
    """A folder with the data folders train, test and perhaps dev.

    A data folder has wav.scp and text, and may have segments and utt2spk. A line of wav.scp names a
    file, an offset in an archive (FILE:OFFSET), or a command (... |).

    Args:
        run_commands: whether commands are run; otherwise they are refused.
    """
    splits = [name for name in SPLITS if name != "dev" or (folder / name).is_dir()]
    return {name: read_data_folder(folder / name, run_commands=run_commands) for name in splits}


def read_data_folder(folder: Path, *, run_commands: bool = False) -> list[Utterance]:
    """The utterances of one data folder, their text as words."""
    recordings = {
        name: _source(place, f"{folder / 'wav.scp'}, {name}", run_commands)
        for name, place in _table(folder / "wav.scp").items()
    }
    texts = _table(folder / "text", may_be_empty=True)
    speakers = _table(folder / "utt2spk") if (folder / "utt2spk").exists() else None
    result = []
    for key, recording, start, end in _segments(folder, recordings):
        if recording not in recordings:
            where = str(folder / "wav.scp")
            raise ValueError(expected(where, f"the recording {quote(recording)}", "none"))
        words = tuple(_of(key, texts, folder / "text").split())
        # Without the file each utterance is a speaker of its own, as in Kaldi.
        speaker = key if speakers is None else _of(key, speakers, folder / "utt2spk")
        source = recordings[recording]
        result.append(Utterance(key, speaker, source, words, start=start, end=end))
    return result


def _of(key: str, table: Mapping[str, str], path: Path) -> str:
    if key not in table:
        raise ValueError(expected(str(path), f"a line for {quote(key)}", "none"))
    return table[key]


def _segments(
    folder: Path, recordings: Iterable[str]
) -> Iterator[tuple[str, str, float, float | None]]:
    """Of each utterance its name, its recording, its start and its end."""
    path = folder / "segments"
    if not path.exists():
        yield from ((name, name, 0.0, None) for name in recordings)
        return
    for key, rest in _table(path).items():
        try:
            recording, *bounds = rest.split()
            start, end = map(float, bounds)
        except ValueError:
            wanted = "a recording, a start and an end in seconds"
            raise ValueError(expected(f"{path}, {key}", wanted, quote(rest))) from None
        last = None if end < 0 else end  # Kaldi writes -1 for the end of the recording
        require_span(f"{path}, {key}", start, last)
        yield key, recording, start, last


def _source(place: str, where: str, run_commands: bool) -> Source:
    if place.endswith("|"):
        if not run_commands:
            advice = "give --run-commands to run it, if you trust the list"
            raise ValueError(expected(where, "a file", f"the command {quote(place)}", advice))
        return Command(place.removesuffix("|").strip())
    path, colon, offset = place.rpartition(":")
    if colon and offset.isdecimal():
        if len(offset) > OFFSET_DIGITS:
            raise ValueError(expected(where, "an offset in bytes", quote(offset)))
        return Ark(Path(path), int(offset))
    return File(Path(place))


def _table(path: Path, *, may_be_empty: bool = False) -> dict[str, str]:
    """What follows the first word of each line, by that word."""
    require_file(path, "a file of a Kaldi data folder")
    table: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        key, rest = (*line.split(maxsplit=1), "", "")[:2]
        if not key or not (rest or may_be_empty):
            wanted = "a name and what belongs to it"
            raise ValueError(expected(f"{path}, line {number}", wanted, quote(line)))
        if key in table:
            raise ValueError(expected(f"{path}, line {number}", "each name once", quote(key)))
        table[key] = rest.strip()
    return table
