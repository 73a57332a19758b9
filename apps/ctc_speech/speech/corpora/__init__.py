"""Corpora: utterances with their words and labels, in the splits train, dev and test."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from pathlib import Path
from typing import Literal

from linattn_core.errors import expected
from speech.corpora.corpus import SPLITS, BadInput, Corpus, Split, Utterance, add_labels, hold_out
from speech.corpora.kaldi import load_kaldi
from speech.corpora.manifest import read_manifest
from speech.corpora.published import load_an4, load_fsdd
from speech.corpora.synthetic import load_synthetic
from speech.lexicon import Lexicon, read_lexicon
from speech.units import Units, build_spelling, check_units, choose_units

__all__ = ["SPLITS", "BadInput", "Corpus", "CorpusFlags", "CorpusName", "Split", "Utterance"]

CorpusName = Literal["synthetic", "an4", "fsdd", "kaldi", "manifest"]
USED_BY: dict[str, tuple[CorpusName, ...]] = {
    "lexicon": ("kaldi", "manifest"),
    "run_commands": ("kaldi",),
    **dict.fromkeys(("manifest", "dev_manifest", "test_manifest"), ("manifest",)),
}


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "linattn" / "speech"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusFlags:
    """Where scripts read a corpus from; the docstrings are the help of the flags."""

    data_dir: Path | None = None
    """Folder of the corpus, or with a subfolder of its name; synthetic and manifest need none."""
    manifest: Path | None = None
    """JSON lines with audio_filepath and text, to train on, for the corpus manifest."""
    dev_manifest: Path | None = None
    """The same for the dev set; if not given, a ninth of the speakers of --manifest."""
    test_manifest: Path | None = None
    """The same for the test set; if not given, a ninth of the speakers, too."""
    lexicon: Path | None = None
    """Pronunciations in CMUdict format, for a kaldi corpus or a manifest whose text is words."""
    run_commands: bool = False
    """Run the commands in Kaldi's lists of files; only for lists that you trust."""
    cache: Path = dataclasses.field(default_factory=_default_cache)
    """Folder for features and synthesized speech."""

    def read(
        self,
        name: CorpusName,
        bad_input: BadInput = "refuse",
        utterances: int = 2_000,
        kind: str | None = None,
        units: Units | None = None,
    ) -> Corpus:
        """The corpus `name`.

        Args:
            bad_input: whether utterances without a recording, or with words that have no labels,
                are refused or left out.
            utterances: for training, of synthetic.
            kind: of the labels, as --units takes it.
            units: the labels of a run, in place of those that the training set gives.
        """
        check_units(kind)
        for field, corpora in USED_BY.items():
            if getattr(self, field) and name not in corpora:
                flag, wanted = f"--{field.replace('_', '-')}", " or ".join(corpora)
                raise ValueError(expected(flag, f"--corpus {wanted} with it", f"--corpus {name}"))
        lexicon = None if self.lexicon is None else read_lexicon(self.lexicon)
        skipped: dict[Split, Counter[str]] = {split: Counter() for split in SPLITS}
        if name == "synthetic":
            splits, lexicon = load_synthetic(self.cache, utterances)
        elif name == "manifest":
            splits = self._read_manifests(bad_input, skipped)
        else:
            splits, lexicon = self._read_folder(name, lexicon)
        for split in SPLITS:
            if split not in splits:
                splits["train"], splits[split] = hold_out(splits["train"], split)
        kind = kind or ("characters" if lexicon is None and name == "manifest" else "phones")
        units = units or choose_units(kind, lexicon, [item.words for item in splits["train"]])
        spelling = build_spelling(units, lexicon)
        labeled = {
            split: add_labels(name, of, spelling, bad_input, skipped[split])
            for split, of in splits.items()
        }
        return Corpus(name, units, labeled, skipped)

    def _read_manifests(
        self, bad_input: BadInput, skipped: dict[Split, Counter[str]]
    ) -> dict[Split, list[Utterance]]:
        paths = (self.manifest, self.dev_manifest, self.test_manifest)
        if self.manifest is None:
            raise ValueError(expected("--manifest", "the file that lists the recordings", "none"))
        return {
            split: read_manifest(path, bad_input, skipped[split])
            for split, path in zip(SPLITS, paths, strict=True)
            if path is not None
        }

    def _read_folder(
        self, name: CorpusName, lexicon: Lexicon | None
    ) -> tuple[dict[Split, list[Utterance]], Lexicon | None]:
        if self.data_dir is None:
            raise ValueError(expected("--data-dir", f"the folder of {name}", "none"))
        subfolder = self.data_dir / name
        folder = subfolder if subfolder.is_dir() else self.data_dir
        if name == "an4":
            return load_an4(folder)
        if name == "fsdd":
            return load_fsdd(folder)
        return load_kaldi(folder, run_commands=self.run_commands), lexicon
