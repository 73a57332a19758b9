"""Corpora: utterances with their words and phones, in the splits train, dev and test."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Literal

from linattn_core.errors import expected
from speech.corpora.an4 import load_an4
from speech.corpora.corpus import SPLITS, BadInput, Corpus, Split, Utterance
from speech.corpora.fsdd import load_fsdd
from speech.corpora.kaldi import load_kaldi
from speech.corpora.synthetic import load_synthetic
from speech.lexicon import read_lexicon

__all__ = ["SPLITS", "BadInput", "Corpus", "CorpusFlags", "CorpusName", "Split", "Utterance"]
__all__ += ["default_cache", "load_corpus"]

CorpusName = Literal["synthetic", "an4", "fsdd", "kaldi"]


def default_cache() -> Path:
    """Where features and synthesized speech are kept: the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "linattn" / "speech"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusFlags:
    """Where scripts read a corpus from; the docstrings are the help of the flags."""

    data_dir: Path | None = None
    """Folder of the corpus, or with a subfolder of its name; synthetic needs none."""
    lexicon: Path | None = None
    """Pronunciations in CMUdict format, for a kaldi corpus whose text is words."""
    run_commands: bool = False
    """Run the commands in Kaldi's lists of files; only for lists that you trust."""
    cache: Path = dataclasses.field(default_factory=default_cache)
    """Folder for features and synthesized speech."""

    def read(self, name: CorpusName, bad_input: BadInput, utterances: int) -> Corpus:
        """The corpus; see `load_corpus`."""
        return load_corpus(
            name,
            self.data_dir,
            cache=self.cache,
            lexicon=self.lexicon,
            bad_input=bad_input,
            run_commands=self.run_commands,
            utterances=utterances,
        )


def load_corpus(
    name: CorpusName,
    data_dir: Path | None,
    *,
    cache: Path,
    lexicon: Path | None = None,
    bad_input: BadInput = "refuse",
    run_commands: bool = False,
    utterances: int = 2_000,
) -> Corpus:
    """The corpus `name`.

    Args:
        data_dir: its folder, or one with a subfolder of its name; synthetic needs none.
        cache: where synthetic is made.
        lexicon: of the words in a Kaldi folder; without it, its text holds phones.
        bad_input: whether words without a pronunciation are refused or skipped.
        run_commands: whether commands in Kaldi's lists are run.
        utterances: for training, of synthetic.

    Raises:
        ValueError, OSError: in one sentence.
    """
    for flag, given in (("--lexicon", lexicon), ("--run-commands", run_commands)):
        if given and name != "kaldi":
            raise ValueError(expected(flag, "--corpus kaldi with it", f"--corpus {name}"))
    if name == "synthetic":
        return load_synthetic(cache, utterances)
    if data_dir is None:
        raise ValueError(expected("--data-dir", f"the folder of {name}", "none"))
    folder = data_dir / name if (data_dir / name).is_dir() else data_dir
    if name == "an4":
        return load_an4(folder, bad_input)
    if name == "fsdd":
        return load_fsdd(folder, bad_input)
    words = None if lexicon is None else read_lexicon(lexicon)
    return load_kaldi(folder, words, bad_input, run_commands=run_commands)
