"""Tokenizers by name, and files as arrays of tokens: in memory, or prepared once on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from language.files import DESCRIPTION, Corpus, Part, find_parts, read_blocks, read_texts
from linattn_core.errors import expected, quote, rename_subject
from linattn_lab.runs import data_digest
from linattn_lab.store import read_model
from linattn_models import ByteTokenizer, CharacterTokenizer
from linattn_models.basics.files import new_folder
from linattn_models.heads.tokenizer import (
    count_tokens,
    decode_tokens,
    encode_text,
    read_tokenizer,
    write_tokenizer,
)

Array = npt.NDArray[Any]
END = "\0"
"""Stands after each file, where the tokenizer has it."""
TOKENIZER = "tokenizer.json"
TOKENS = ("training.bin", "held_out.bin")
MOST_PAIRS = 1 << 20
"""The largest vocabulary that is trained, for which the library takes memory at once."""


class Counts(BaseModel, frozen=True, extra="forbid"):
    """What the tokens were made of, as in tokens.json.

    Args:
        tokenizer: its name, as for `make_tokenizer`.
        tokenizer_digest: a hash of its file.
        training_bytes, held_out_bytes: of the files, and one for each end that is a token.
        digest: a hash of the tokens.
    """

    tokenizer: str
    tokenizer_digest: str
    files: int
    training_bytes: int
    held_out_bytes: int
    dtype: Literal["uint8", "uint16", "uint32"]
    digest: str


class Texts(NamedTuple):
    """The tokens to learn from and those that are held out, (length,) each, and their tokenizer."""

    training: Array
    held_out: Array
    tokenizer: Any
    counts: Counts


def read_tokens(data: Sequence[Path], tokenizer: str | None, out: Path) -> Texts:
    """The tokens of the files of `data`, or those that `prepare` wrote there.

    Args:
        data, out: as for `find_parts`, or one folder that `prepare` wrote.
        tokenizer: "bytes", "characters", "bpe:SIZE", or a file; None for bytes, or the prepared.
    """
    if len(data) == 1 and (data[0] / DESCRIPTION).is_file():
        return _open_tokens(data[0], tokenizer)
    corpus = find_parts(data, out)
    chosen = make_tokenizer(tokenizer or "bytes", corpus.training, corpus.held_out)
    dtype = _smallest_dtype(chosen)
    both = [
        np.concatenate([np.empty(0, dtype), *encode_parts(parts, chosen)])
        for parts in (corpus.training, corpus.held_out)
    ]
    counts = _count(corpus, tokenizer or "bytes", chosen, both)
    return Texts(both[0], both[1], chosen, counts)


def name_dataset(data: Sequence[Path]) -> str:
    """A name for files and folders: that of the first."""
    return data[0].resolve().stem or "files" if data else "stdlib"


def prepare(data: Sequence[Path], tokenizer: str, out: Path) -> Texts:
    """Writes the tokens of files into the new folder `out`, in memory of a block at a time."""
    if out.exists():
        raise ValueError(expected("--out", "a new folder", f"{out}, which exists"))
    corpus = find_parts(data, out)
    chosen = make_tokenizer(tokenizer, corpus.training, corpus.held_out)
    parts = corpus.training, corpus.held_out
    out.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(out) as folder:
        for name, of_file in zip(TOKENS, parts, strict=True):
            with (folder / name).open("wb") as file:
                for block in encode_parts(of_file, chosen):
                    file.write(block.data)
        both = [_map(folder / name, _smallest_dtype(chosen)) for name in TOKENS]
        counts = _count(corpus, tokenizer, chosen, both)
        (folder / TOKENIZER).write_bytes(write_tokenizer(chosen))
        (folder / DESCRIPTION).write_text(counts.model_dump_json(indent=1))
    return _open_tokens(out, None)


def make_tokenizer(name: str, training: Sequence[Part], held_out: Sequence[Part]) -> Any:
    """The tokenizer of this name: trained on, or checked against, the files."""
    if name == "bytes":
        return ByteTokenizer()
    if name == "characters":
        texts = (text for part in (*training, *held_out) for text in read_texts(part))
        return CharacterTokenizer(sorted(set(END).union(*texts)))
    kind, _, size = name.partition(":")
    if kind == "bpe" and size.isdecimal() and len(ByteTokenizer()) < int(size) <= MOST_PAIRS:
        return _train_pairs(int(size), training)
    if not Path(name).is_file():
        wanted = f"bytes, characters, bpe:SIZE of 257 to {MOST_PAIRS:,}, or a tokenizer's file"
        raise ValueError(expected("--tokenizer", wanted, quote(name)))
    tokenizer = read_tokenizer(name, Path(name).read_bytes())
    for part in training:
        _require_fit(name, tokenizer, part)
    return tokenizer


def encode_parts(parts: Sequence[Part], tokenizer: Any) -> Iterator[Array]:
    """The tokens of parts of files, in blocks, each part with its end."""
    dtype = _smallest_dtype(tokenizer)
    end = np.array(_encode_end(tokenizer), dtype)
    for part in parts:
        if isinstance(tokenizer, ByteTokenizer):
            yield from (np.frombuffer(block, dtype) for block in read_blocks(part))
        else:
            yield from (_encode(tokenizer, text, part, dtype) for text in read_texts(part))
        yield end


def _encode(tokenizer: Any, text: str, part: Part, dtype: str) -> Array:
    try:
        return np.array(encode_text(tokenizer, text), dtype)
    except ValueError as error:
        raise rename_subject(error, str(part.file)) from None


def _encode_end(tokenizer: Any) -> list[int]:
    """The tokens of the end of a file; none if the tokenizer does not have it."""
    try:
        tokens = encode_text(tokenizer, END)
    except ValueError:
        return []
    return tokens if decode_tokens(tokenizer, tokens) == END else []


def _require_fit(name: str, tokenizer: Any, part: Part) -> None:
    """Refuses a tokenizer without the characters with which a file begins."""
    text = next(read_texts(part))[:10_000]
    try:
        back = decode_tokens(tokenizer, encode_text(tokenizer, text))
    except ValueError as error:
        back = str(error)
    if "".join(back.split()) != "".join(text.split()):
        wanted, got = f"a tokenizer that gives back the text of {part.file}", "another text"
        advice = "give bytes, characters or bpe:4096, or a file trained on such texts"
        raise ValueError(expected(f"--tokenizer {name}", wanted, got, advice))


def _train_pairs(size: int, parts: Sequence[Part]) -> Any:
    """Byte-pair encoding of the text of parts, with all bytes among its tokens."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        wanted, advice = "the library tokenizers", "`python -m pip install tokenizers` installs it"
        raise ValueError(expected("--tokenizer bpe", wanted, "none", advice)) from None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    texts = (text for part in parts for text in read_texts(part))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _smallest_dtype(tokenizer: Any) -> Literal["uint8", "uint16", "uint32"]:
    size = count_tokens(tokenizer)
    return "uint8" if size <= 1 << 8 else "uint16" if size <= 1 << 16 else "uint32"


def _count(corpus: Corpus, name: str, tokenizer: Any, tokens: Sequence[Array]) -> Counts:
    both, end = (corpus.training, corpus.held_out), bool(_encode_end(tokenizer))
    sizes = [sum(part.end - part.start + end for part in parts) for parts in both]
    return Counts.model_validate(
        {
            "tokenizer": Path(name).name,
            "tokenizer_digest": data_digest(np.frombuffer(write_tokenizer(tokenizer), np.uint8)),
            "files": corpus.files,
            "training_bytes": sizes[0],
            "held_out_bytes": sizes[1],
            "dtype": tokens[0].dtype.name,
            "digest": data_digest(*tokens),
        }
    )


def _open_tokens(folder: Path, tokenizer: str | None) -> Texts:
    """What `prepare` wrote: the tokens stay on disk."""
    if tokenizer is not None:
        wanted = f"none with the prepared tokens in {folder}"
        raise ValueError(expected("--tokenizer", wanted, quote(tokenizer)))
    counts = read_model(folder / DESCRIPTION, Counts, "prepare it again")
    content = (folder / TOKENIZER).read_bytes()
    training, held_out = (_map(folder / name, counts.dtype) for name in TOKENS)
    own = data_digest(training, held_out), data_digest(np.frombuffer(content, np.uint8))
    if own != (counts.digest, counts.tokenizer_digest):
        wanted, got = f"the tokens and the tokenizer of its {DESCRIPTION}", "others"
        raise ValueError(expected(str(folder), wanted, got, "prepare it again"))
    return Texts(training, held_out, read_tokenizer(str(folder / TOKENIZER), content), counts)


def _map(file: Path, dtype: str) -> Array:
    size = file.stat().st_size if file.is_file() else 0
    if not size or size % np.dtype(dtype).itemsize:
        wanted, got = f"a file of tokens in {dtype}", f"{size:,} bytes"
        raise ValueError(expected(str(file), wanted, got, "prepare it again"))
    return np.memmap(file, dtype, "r")
