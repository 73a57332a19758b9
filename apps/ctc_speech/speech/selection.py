"""Beam search with an n-gram, selected on the dev set for each run, applied to the test set."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import pydantic
import torch

from linattn_lab.machine import default_device
from linattn_lab.store import read_model
from linattn_models.ctc import NGram
from linattn_models.training import RunFolder, environment, write_json
from speech.corpora import BadInput, Corpus, Split
from speech.decoding import Decoding, Search
from speech.error_rate import Errors, evaluate
from speech.models import TrainedRun, load_run, rebuild_recipe
from speech.training import load_speech

FILE = "recognition.json"
BEAM = 16
ORDERS, WEIGHTS, BONUSES = (3, 5), (0.2, 0.35, 0.5), (0.0, 0.5, 1.0)
GREEDY = Decoding()


def list_decodings() -> list[Decoding]:
    """What is tried on the dev set, for every model the same; of equal ones the first is taken."""
    beam = Decoding(decoder="beam", beam=BEAM)
    with_ngram = [
        replace(beam, ngram=order, lm_weight=weight, insertion_bonus=bonus)
        for order, weight, bonus in itertools.product(ORDERS, WEIGHTS, BONUSES)
    ]
    return [GREEDY, beam, *with_ngram]


class SplitErrors(pydantic.BaseModel):
    """The errors on a split, by name, with greedy decoding and with the selected one."""

    greedy: dict[str, float]
    selected: dict[str, float]
    phones: int


class Recognition(pydantic.BaseModel, extra="allow"):
    """The content of recognition.json in the folder of a run; besides, what the errors depend on.

    Attributes:
        dev_rates: the error rate on the dev set by decoding.
        selected: the decoding with the fewest errors there.
        test: None as long as the test set was not recognized.
    """

    dev_rates: dict[str, float]
    selected: str
    dev: SplitErrors
    test: SplitErrors | None = None
    date: str
    environment: dict[str, Any]


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

    def recognize(self, run: RunFolder, test: bool) -> Recognition:
        """The errors of a run that has ended: measured and stored in its folder, or read there.

        What is stored of other utterances, settings or weights is measured again.

        Args:
            test: whether the test set is recognized, too.
        """
        file, about = run.path / FILE, self._about(run)
        recognition = read_model(file, Recognition) if file.exists() else None
        if recognition is not None and not about.items() <= recognition.model_dump().items():
            recognition = None
        if recognition is None or (test and recognition.test is None):
            trained = load_run(run.path, self.average)
            if recognition is None:
                recognition = self._on_dev(trained, about)
                write_json(file, recognition.model_dump(exclude_none=True))
            if test:
                decodings = [GREEDY.label, recognition.selected]
                greedy, selected = self._errors(trained, "test", decodings)
                recognition = recognition.model_copy(update={"test": _pair(greedy, selected)})
                write_json(file, recognition.model_dump(exclude_none=True))
        return recognition if test else recognition.model_copy(update={"test": None})

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

    def _on_dev(self, trained: TrainedRun, about: dict[str, Any]) -> Recognition:
        labels = [*self.searches]
        errors = dict(zip(labels, self._errors(trained, "dev", labels), strict=True))
        rates = {label: of.rate for label, of in errors.items()}
        selected = min(rates, key=lambda label: rates[label])
        return Recognition(
            **about,
            dev_rates=rates,
            selected=selected,
            dev=_pair(errors[GREEDY.label], errors[selected]),
            date=date.today().isoformat(),
            environment=environment(torch.device(default_device())),
        )

    @functools.cached_property
    def searches(self) -> dict[str, Search]:
        """The grid, by label, its n-grams estimated from the training transcripts."""
        transcripts = self.corpus.transcripts("train")
        ngrams = {n: NGram.estimate(transcripts, self.corpus.inventory, n) for n in ORDERS}
        return {of.label: Search(of, ngrams.get(of.ngram)) for of in list_decodings()}

    def _errors(self, trained: TrainedRun, split: Split, labels: Sequence[str]) -> list[Errors]:
        recipe = rebuild_recipe(trained, self.bad_input)
        speech = load_speech(self.corpus, split, recipe, self.cache, trained.prior)
        decoders = [self.searches[label].phones for label in labels]
        return evaluate(trained.model, speech, trained.inventory, decoders, progress=True)


def _pair(greedy: Errors, selected: Errors) -> SplitErrors:
    return SplitErrors(greedy=greedy.metrics(), selected=selected.metrics(), phones=greedy.phones)
