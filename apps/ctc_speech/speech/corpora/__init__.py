"""Corpora: utterances with their words and phones, in the splits train, dev and test."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Literal

from linattn_core.errors import expected
from speech.corpora.corpus import SPLITS, BadInput, Corpus, Split, Utterance
from speech.corpora.kaldi import load_kaldi
from speech.corpora.published import load_an4, load_fsdd
from speech.corpora.synthetic import load_synthetic
from speech.lexicon import read_lexicon

__all__ = ["SPLITS", "BadInput", "Corpus", "CorpusFlags", "CorpusName", "Split", "Utterance"]

CorpusName = Literal["synthetic", "an4", "fsdd", "kaldi"]


def _default_cache() -> Path:
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
    cache: Path = dataclasses.field(default_factory=_default_cache)
    """Folder for features and synthesized speech."""

    def read(
        self, name: CorpusName, bad_input: BadInput = "refuse", utterances: int = 2_000
    ) -> Corpus:
        """The corpus `name`.

        Args:
            bad_input: whether words without a pronunciation are refused, or their utterances
                left out.
            utterances: for training, of synthetic.
        """
        for flag, value in (("--lexicon", self.lexicon), ("--run-commands", self.run_commands)):
            if value and name != "kaldi":
                raise ValueError(expected(flag, "--corpus kaldi with it", f"--corpus {name}"))
        if name == "synthetic":
            return load_synthetic(self.cache, utterances)
        if self.data_dir is None:
            raise ValueError(expected("--data-dir", f"the folder of {name}", "none"))
        subfolder = self.data_dir / name
        folder = subfolder if subfolder.is_dir() else self.data_dir
        if name == "an4":
            return load_an4(folder, bad_input)
        if name == "fsdd":
            return load_fsdd(folder)
        lexicon = None if self.lexicon is None else read_lexicon(self.lexicon)
        return load_kaldi(folder, lexicon, bad_input, run_commands=self.run_commands)
