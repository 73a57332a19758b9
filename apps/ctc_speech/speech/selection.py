"""Beam search with an n-gram, selected on the dev set for each run, applied to the test set."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from linattn_core.errors import expected
from linattn_models.ctc import NGram
from linattn_models.training import RunFolder, write_json
from linattn_models.validation import json_object
from speech.corpora import BadInput, Corpus, Split
from speech.decoding import Decoding, Search
from speech.measures import Decode, Errors, evaluated_by
from speech.measuring import where_it_runs
from speech.models import TrainedRun, load_run, run_recipe
from speech.tables import KINDS
from speech.training import held_out_speech

FILE = "recognition.json"
BEAM = 16
ORDERS, WEIGHTS, BONUSES = (3, 5), (0.2, 0.35, 0.5), (0.0, 0.5, 1.0)
GREEDY = Decoding()


def grid() -> list[Decoding]:
    """What is tried on the dev set, for every model the same; of equal ones the first is taken."""
    settings = itertools.product(ORDERS, WEIGHTS, BONUSES)
    with_ngram = [Decoding("beam", BEAM, n, None, weight, bonus) for n, weight, bonus in settings]
    return [GREEDY, Decoding("beam", BEAM), *with_ngram]


@dataclass(frozen=True)
class Selection:
    """Recognizes held-out speech greedily and by the decoding with the fewest errors on dev.

    Greedy decoding is in the grid, so on dev what is selected is never worse.

    Attributes:
        average: how many of the newest checkpoints the weights are the mean of.
    """

    corpus: Corpus
    cache: Path
    bad_input: BadInput
    average: int

    def recognition(self, run: RunFolder, test: bool) -> dict[str, Any]:
        """The errors of a run that has ended: measured and stored in its folder, or read there.

        What is stored of other utterances, settings or weights is measured again.

        Args:
            test: whether the test set is recognized, too.

        Returns:
            "dev_rates", by decoding; "selected", one of these; "dev" and with `test` "test", each
            with the errors of "greedy" and "selected"; "date" and "environment".

        Raises:
            ValueError: what is stored is damaged.
        """
        file, about = run.path / FILE, self._about(run)
        stored = json_object(file.read_bytes(), str(file)) if file.exists() else {}
        record = stored if about.items() <= stored.items() else about
        if "dev" in record:
            _require_errors(record, file)
        needed = [name for name in ("dev", "test") if name not in record]
        if needed and (test or "dev" in needed):
            trained = load_run(run.path, self.average)
            if "dev" in needed:
                record = about | self._on_dev(trained) | _today()
                write_json(file, record)
            if test:
                record |= {"test": self._on_test(trained, record["selected"])} | _today()
                write_json(file, record)
        return {name: value for name, value in record.items() if test or name != "test"}

    def _about(self, run: RunFolder) -> dict[str, Any]:
        return {
            "corpus": self.corpus.name,
            "utterances": self.corpus.digest(),
            "average": self.average,
            "steps": run.summary()["steps"],
            "bad_input": self.bad_input,
            "beam": BEAM,
            "grid": {"order": list(ORDERS), "weight": list(WEIGHTS), "bonus": list(BONUSES)},
        }

    def _on_dev(self, trained: TrainedRun) -> dict[str, Any]:
        errors = dict(
            zip(self.searches, self._errors(trained, "dev", self.searches.values()), strict=True)
        )
        rates = {label: of.rate for label, of in errors.items()}
        selected = min(rates, key=lambda label: rates[label])
        return {
            "dev_rates": rates,
            "selected": selected,
            "dev": _pair(errors[GREEDY.label], errors[selected]),
        }

    def _on_test(self, trained: TrainedRun, selected: str) -> dict[str, Any]:
        searches = [self.searches[GREEDY.label], self.searches[selected]]
        return _pair(*self._errors(trained, "test", searches))

    @functools.cached_property
    def searches(self) -> dict[str, Search]:
        """The grid, by label, its n-grams estimated from the training transcripts."""
        transcripts = self.corpus.transcripts("train")
        ngrams = {n: NGram.estimate(transcripts, self.corpus.inventory, n) for n in ORDERS}
        return {of.label: Search(of, ngrams.get(of.ngram)) for of in grid()}

    def _errors(
        self, trained: TrainedRun, split: Split, searches: Iterable[Search]
    ) -> list[Errors]:
        recipe = run_recipe(trained, self.bad_input)
        speech = held_out_speech(self.corpus, split, recipe, self.cache)
        decoders = [search.phones for search in searches]
        total = len(speech) * len(decoders)
        with tqdm(total=total, desc=f"decoding {split}", unit="utterance") as progress:
            counted = [_counted(decode, progress) for decode in decoders]
            return evaluated_by(trained.model, speech, trained.inventory, counted)


def _counted(decode: Decode, progress: Any) -> Decode:
    def counting(log_probabilities: Tensor, lengths: Tensor) -> list[list[int]]:
        phones = decode(log_probabilities, lengths)
        progress.update(len(phones))
        return phones

    return counting


def _pair(greedy: Errors, selected: Errors) -> dict[str, Any]:
    return {"greedy": greedy.metrics(), "selected": selected.metrics(), "phones": greedy.phones}


def _require_errors(record: Mapping[str, Any], file: Path) -> None:
    """Refuses a record that lacks what tables are made of."""
    try:
        splits = [record[split] for split in ("dev", "test") if split in record]
        errors = [of[decoded] for of in splits for decoded in ("greedy", "selected")]
        values = [x[name] for x in errors for name in ("phoneme_error_rate", *KINDS)]
        values += [of["phones"] for of in splits]
        values += [record["dev_rates"][record["selected"]]]
        complete = all(isinstance(x, int | float) for x in values)
        complete = complete and {"cpu", "commit"} <= record["environment"].keys()
        complete = complete and isinstance(record["date"], str)
    except (KeyError, TypeError, AttributeError):
        complete = False
    if not complete:
        advice = "remove the file to measure them again"
        raise ValueError(expected(str(file), "the errors of a run", "a damaged record", advice))


def _today() -> dict[str, Any]:
    cpu = f"{torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"
    return {"date": date.today().isoformat(), "environment": {**where_it_runs(), "cpu": cpu}}
