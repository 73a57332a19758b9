"""Train a character model with softmax, convert it, and say how far it is from its teacher.

    python apps/conversion/characters.py --threads 2
    python apps/conversion/characters.py --steps 20 --width 32 --tokens 100      a quick trial

Needs linattn-models[train,transformers], and peft for LoRA. A Llama with grouped heads learns the
bytes of a text (by default the documentation that Python brings along). The converted model uses
softmax for the last 64 keys of each query, and gets a tenth of the steps: half for the feature
maps, half for fine-tuning, whole and by LoRA. Into --out
go results.json, table.md and the converted model, which AutoModelForCausalLM loads after
`import linattn_models.huggingface`.
"""

from __future__ import annotations

if __name__ == "__main__":
    import converting  # noqa: F401 - stops without linattn-lab
    import linattn_lab.startup
    import linattn_lab.threads  # noqa: F401

import copy
import dataclasses
import importlib.util
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from converting.results import prepare, require_finite, write_results
from linattn_core.errors import expected
from linattn_lab.script import parse_flags, run_script
from linattn_lab.tables import markdown_table
from linattn_models.huggingface import LinattnForCausalLM, convert, transfer_attention

LENGTH, BATCH = 256, 16  # tokens in a sequence, sequences in a step
WARM_UP = 20  # steps
# A tenth of a text is held out, and has to hold some sequences.
LEAST_TEXT = 100 * LENGTH


@dataclasses.dataclass(frozen=True)
class Flags:
    """The settings of a run."""

    text: Path | None = None
    """A file of 25 kB or more, better of megabytes."""
    steps: int = 2000
    """Of the teacher's training."""
    width: int = 128
    """Of the model: a multiple of 8."""
    features: int = 64
    """Of each head's map: an even number."""
    window: int = 64
    """The last keys for which a query uses softmax; 0 for none."""
    tune: tuple[Literal["whole", "lora"], ...] = ("whole", "lora")
    """Which weights are fine-tuned: all, or LoRA's; each from the same maps."""
    tokens: int = 2000
    """Greedy tokens whose time is taken."""
    threads: int | None = None
    """Threads of the CPU; torch's choice if not given."""
    out: Path | None = None
    """Folder for the results; runs/conversion/characters if not given."""


def bytes_of(path: Path | None) -> Tensor:
    """The text as (length,) int64 in 0..255."""
    if path is not None:
        content = path.read_bytes()
    else:
        from pydoc_data.topics import topics

        content = "\n".join(topics[name] for name in sorted(topics)).encode()
    if len(content) < LEAST_TEXT:
        raise ValueError(expected("--text", f"{LEAST_TEXT} bytes or more", len(content)))
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).long()


def batches(data: Tensor, steps: int, seed: int, what: str) -> Iterator[Tensor]:
    """(BATCH, LENGTH) each, from random places, with a progress bar."""
    generator = torch.Generator().manual_seed(seed)
    for _ in tqdm(range(steps), desc=what, unit="step", disable=None):
        starts = torch.randint(len(data) - LENGTH, (BATCH, 1), generator=generator)
        yield data[starts + torch.arange(LENGTH)]


def train(model: Any, steps: int, rate: float, inputs: Iterator[Tensor]) -> None:
    """AdamW with a warm-up and a cosine down to 0, on the weights that require gradients."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, rate, betas=(0.9, 0.95), weight_decay=0.1)
    warm_up = min(WARM_UP, max(1, steps // 5))

    def share(step: int) -> float:
        return min(1.0, (step + 1) / warm_up) * (1 + math.cos(math.pi * step / steps)) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    model.train()
    for step, tokens in enumerate(inputs, start=1):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        require_finite(loss, step)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


@torch.no_grad()
def nats(model: Any, held_out: Tensor) -> float:
    """The mean of -log p of held-out bytes, in nats."""
    losses = [
        model(input_ids=tokens, labels=tokens, use_cache=False).loss
        for tokens in batches(held_out, 20, seed=0, what="held out")
    ]
    return torch.stack(losses).mean().item()


@torch.no_grad()
def step_times(model: Any, tokens: int) -> list[float]:
    """Milliseconds a token of greedy generation, over the first and over the last tenth."""
    cache, token = DynamicCache(), torch.zeros(1, 1, dtype=torch.int64)
    clock = [time.perf_counter()]
    for _ in tqdm(range(tokens), desc="generation", unit="token", disable=None):
        token = model(input_ids=token, cache=cache, use_cache=True).logits.argmax(-1)
        clock.append(time.perf_counter())
    tenth = max(1, tokens // 10)
    first, last = clock[tenth] - clock[0], clock[-1] - clock[-1 - tenth]
    return [1000 * first / tenth, 1000 * last / tenth]


def fine_tuned(model: Any, data: Tensor, steps: int, kind: str) -> Any:
    """A copy of the converted model after so many steps."""
    model, inputs = copy.deepcopy(model), batches(data, steps, seed=3, what=kind)
    if kind == "whole":
        train(model, steps, 1e-3, inputs)
        return model
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    adapted = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=targets))
    train(adapted, steps, 2e-3, inputs)
    return adapted.merge_and_unload()


def trained_teacher(flags: Flags, data: Tensor) -> Any:
    """A Llama of four layers with softmax."""
    config = LlamaConfig(
        vocab_size=256, hidden_size=flags.width, intermediate_size=3 * flags.width,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=4096, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    teacher = LlamaForCausalLM(config)
    train(teacher, flags.steps, 2e-3, batches(data, flags.steps, seed=1, what="teacher"))
    return teacher


def check(flags: Flags) -> None:
    """Refuses, before the training, what would fail after it."""
    if not flags.tune:
        raise ValueError(expected("--tune", "whole, lora or both", "none"))
    if flags.width % 8:
        raise ValueError(expected("--width", "a multiple of 8", flags.width))
    if flags.features % 2:
        raise ValueError(expected("--features", "an even number", flags.features))
    if "lora" in flags.tune and importlib.util.find_spec("peft") is None:
        advice = "pip install -c constraints.txt peft, or give --tune whole"
        raise ValueError(expected("--tune lora", "peft to be installed", "none", advice))


def main() -> None:
    """Trains, converts, measures, and writes the tables."""
    flags, start = parse_flags(Flags, description=__doc__), time.perf_counter()
    check(flags)
    least = {"steps": 1, "width": 8, "features": 2, "window": 0, "tokens": 1}
    out = prepare(flags, least, "characters")
    data = bytes_of(flags.text)
    data, held_out = data[: -len(data) // 10], data[-len(data) // 10 :]
    teacher, half = trained_teacher(flags, data), max(1, flags.steps // 20)
    student = convert(copy.deepcopy(teacher), num_features=flags.features, window_size=flags.window)
    values = {
        "softmax, the teacher": nats(teacher, held_out),
        "converted, maps untrained": nats(student, held_out),
    }
    errors = transfer_attention(student, batches(data, half, seed=2, what="transfer"))
    values[f"after {half} steps of attention transfer"] = nats(student, held_out)
    for kind in flags.tune:
        tuned = fine_tuned(student, data, half, kind)
        values[f"after {half} more steps, {kind}"] = nats(tuned, held_out)
    saved = LinattnForCausalLM.from_transformers(tuned)
    saved.save_pretrained(out / "converted")
    times = {
        "softmax": step_times(teacher, flags.tokens),
        "converted": step_times(tuned, flags.tokens),
        "converted, as it is saved": step_times(saved, flags.tokens),
    }
    numbers = {"nats": values, "transfer_errors": errors, "step_milliseconds": times}
    write_results(out, flags, start, numbers, tables(values, times, flags.tokens))


def tables(values: dict[str, float], times: dict[str, list[float]], tokens: int) -> list[str]:
    """Nats of each model, and the time a token."""
    teacher = next(iter(values.values()))
    rows = [[name, f"{value:.3f}", f"{value - teacher:.3f}"] for name, value in values.items()]
    clocks = [[name, *(f"{value:.2f}" for value in pair)] for name, pair in times.items()]
    header = [f"{tokens:,} tokens", "ms a token, first tenth", "last tenth"]
    return [
        markdown_table(["model", "nats a byte", "above the teacher"], rows),
        markdown_table(header, clocks),
    ]


if __name__ == "__main__":
    run_script(main)
