"""From text to tokens and back: bytes, characters, or an object of the library `tokenizers`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linattn_core.errors import expected, quote
from linattn_models.basics.validation import int_list, json_object
from linattn_models.heads import Categorical, Head

# What every tokenizer of the library `tokenizers` has, its ready-made ones too.
_METHODS = ("encode", "decode", "get_vocab", "to_str")


class CharacterTokenizer:
    """One token for each character of a table.

        tokenizer = CharacterTokenizer(sorted(set(text)))

    Args:
        characters: the table, each character once; token i is the character at place i.

    Raises:
        ValueError: no characters, one of them twice, or longer strings.
    """

    def __init__(self, characters: Iterable[str]) -> None:
        table = list(characters)
        if not table or any(not isinstance(x, str) or len(x) != 1 for x in table):
            raise ValueError(expected("characters", "at least one character", quote(characters)))
        self._tokens = {character: token for token, character in enumerate(table)}
        if len(self._tokens) < len(table):
            advice = "pass sorted(set(text))"
            raise ValueError(expected("characters", "each of them once", quote(characters), advice))
        self.characters = "".join(table)

    def __len__(self) -> int:
        return len(self.characters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CharacterTokenizer) and self.characters == other.characters

    def __hash__(self) -> int:
        return hash(self.characters)

    def __repr__(self) -> str:
        return f"CharacterTokenizer({self.characters!r})"

    def encode(self, text: str) -> list[int]:
        """The token of each character of a text.

        Raises:
            ValueError: a character that is not in the table.
        """
        try:
            return [self._tokens[character] for character in text]
        except KeyError as error:
            wanted = f"the {len(self)} characters of the tokenizer"
            raise ValueError(expected("text", wanted, quote(error.args[0]))) from None

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens.

        Raises:
            ValueError: a token without a character.
            TypeError: not a list of integers.
        """
        return "".join(self.characters[place] for place in _read_below(len(self), tokens))

    def to_str(self) -> str:
        """The content of the file that it is saved in."""
        return json.dumps({"characters": self.characters}) + "\n"


@dataclass(frozen=True)
class ByteTokenizer:
    """One token for each byte of UTF-8, 256 in all: for every text, and every file.

    `encode("é")` returns [195, 169].
    """

    def __len__(self) -> int:
        return 256

    def encode(self, text: str | bytes) -> list[int]:
        """The bytes of a text, or of bytes, which need not be UTF-8.

        Raises:
            ValueError: half of a surrogate pair, which UTF-8 does not have.
        """
        return list(text if isinstance(text, bytes) else to_utf8(text))

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens, with U+FFFD for bytes that are not UTF-8; raises as `to_bytes`."""
        return self.to_bytes(tokens).decode(errors="replace")

    def to_bytes(self, tokens: Iterable[int]) -> bytes:
        """The bytes of tokens, exactly.

        Raises:
            ValueError: a token that is not a byte.
            TypeError: not a list of integers.
        """
        return bytes(_read_below(len(self), tokens))

    def to_str(self) -> str:
        """The content of the file that it is saved in."""
        return json.dumps({"bytes": len(self)}) + "\n"


_OWN = (ByteTokenizer, CharacterTokenizer)


def _read_below(size: int, tokens: Iterable[int]) -> list[int]:
    """The tokens of a vocabulary of this size."""
    numbers = int_list("tokens", tokens)
    for number in numbers:
        if not 0 <= number < size:
            raise ValueError(expected("tokens", f"some of 0..{size - 1}", number))
    return numbers


def to_utf8(text: str, name: str = "text") -> bytes:
    """The bytes of a text; refuses half of a surrogate pair, which UTF-8 does not have."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        got = f"{quote(text[error.start])} at place {error.start}"
        advice = "half of a surrogate pair stands alone"
        raise ValueError(expected(name, "Unicode", got, advice)) from None


def encode_text(tokenizer: Any, text: str, *, begins: bool = False) -> list[int]:
    """The tokens of a whole text, without special tokens around them.

    Args:
        begins: whether it begins a sequence that no start vector begins. Then the special tokens
            that the tokenizer puts before texts come first, unless the text begins with them.
    """
    if isinstance(tokenizer, _OWN):
        return tokenizer.encode(text)
    _refuse_settings("tokenizer", tokenizer)
    to_utf8(text)
    with _refuse_failures("text", "one that the tokenizer can encode"):
        tokens: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        first = _tokens_before(tokenizer) if begins else []
    return tokens if tokens[: len(first)] == first else first + tokens


def _tokens_before(tokenizer: Any) -> list[int]:
    """The special tokens that a tokenizer of the library puts before a text."""
    encoding = tokenizer.encode("a")
    mask: list[int] = encoding.special_tokens_mask
    return list(encoding.ids[: mask.index(0)]) if 0 in mask else []


def read_tokens(tokens: Any, most_dims: int = 2) -> Tensor:
    """A token, (N,) tokens or (B, N), of any integer dtype."""
    try:
        numbers = torch.as_tensor(tokens)
    except (TypeError, ValueError, RuntimeError):  # texts, or rows of different lengths
        numbers = torch.zeros(1)
    whole = not (numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool)
    if numbers.ndim > most_dims or (numbers.numel() and not whole):
        raise TypeError(expected("tokens", "integers (N,) or (B, N)", quote(tokens)))
    return numbers


def decode_tokens(tokenizer: Any, tokens: list[int]) -> str:
    """The text of tokens, special tokens included."""
    if isinstance(tokenizer, _OWN):
        return tokenizer.decode(tokens)
    with _refuse_failures("tokens", "some that the tokenizer can decode"):
        text: str = tokenizer.decode(tokens, skip_special_tokens=False)
    return text


@contextmanager
def _refuse_failures(name: str, wanted: str) -> Iterator[None]:
    """Makes one sentence of a failure of the library, whose panics are no Exception."""
    try:
        yield
    except (ImportError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - it has no class of its own
        raise ValueError(expected(name, wanted, quote(error))) from None


def require_tokenizer(name: str, tokenizer: Any) -> None:
    """Refuses text, or the wish for it, where there is no tokenizer."""
    if tokenizer is None:
        wanted, advice = "a model with a tokenizer for text", "set model.tokenizer"
        raise ValueError(expected(name, wanted, "one without", advice))


def _refuse_settings(name: str, tokenizer: Any) -> None:
    """Refuses a tokenizer of the library that cuts texts, fills them up, or encodes at random."""
    model = getattr(tokenizer, "model", None)
    for owner, setting, advice in (
        (tokenizer, "truncation", "call its no_truncation()"),
        (tokenizer, "padding", "call its no_padding()"),
        (model, "dropout", "set its model.dropout = None"),
    ):
        value = getattr(owner, setting, None)
        if value is not None:
            raise ValueError(expected(name, f"one without {setting}", quote(value), advice))


def check_tokenizer(name: str, tokenizer: Any, head: Head) -> None:
    """Refuses what is no tokenizer, changes texts, or has another vocabulary than the head."""
    known = all(callable(getattr(tokenizer, method, None)) for method in _METHODS)
    if not isinstance(tokenizer, _OWN) and not known:
        wanted = "a ByteTokenizer, a CharacterTokenizer, or a Tokenizer of the library tokenizers"
        got, advice = f"a {type(tokenizer).__name__}", ""
        if hasattr(tokenizer, "backend_tokenizer"):
            advice = "pass its backend_tokenizer"
        raise TypeError(expected(name, wanted, got, advice))
    _refuse_settings(name, tokenizer)
    size = count_tokens(tokenizer)
    if not isinstance(head, Categorical):
        wanted = "none for a model without a Categorical head"
        raise ValueError(expected(name, wanted, f"one of {size} tokens"))
    if size != head.levels:
        wanted = f"one of {head.levels} tokens, the model's vocabulary"
        raise ValueError(expected(name, wanted, f"one of {size}"))


def count_tokens(tokenizer: Any) -> int:
    """The size of a tokenizer's vocabulary."""
    if isinstance(tokenizer, _OWN):
        return len(tokenizer)
    return int(max(tokenizer.get_vocab().values(), default=-1)) + 1


def write_tokenizer(tokenizer: Any) -> bytes:
    """The content of a file from which `read_tokenizer` makes the tokenizer again."""
    content: str = (
        tokenizer.to_str() if isinstance(tokenizer, _OWN) else tokenizer.to_str(pretty=True)
    )
    return content.encode()


def read_tokenizer(path: str, content: bytes) -> Any:
    """The tokenizer in the content of a file; `path` is its name in errors.

    Lengths to which the file cuts texts or fills them up, and dropout, are left out.
    """
    values = json_object(content, path)
    try:
        with _refuse_failures(path, "a whole tokenizer"):
            if values.keys() == {"characters"}:
                return CharacterTokenizer(values["characters"])
            if values == {"bytes": 256}:
                return ByteTokenizer()
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_str(content.decode())
            tokenizer.no_truncation()
            tokenizer.no_padding()
            if hasattr(tokenizer.model, "dropout"):
                tokenizer.model.dropout = None
            return tokenizer
    except ImportError:
        wanted = "the library that wrote it, tokenizers"
        advice = "`python -m pip install tokenizers` installs it"
        raise ModuleNotFoundError(expected(path, wanted, "no such library", advice)) from None
