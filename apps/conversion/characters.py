"""Train a character model with softmax, convert it, and say how far it is from its teacher.

    python apps/conversion/characters.py                     minutes
    python apps/conversion/characters.py --steps 40          a try

Needs linattn-models[transformers], and peft for --lora. A Llama with grouped heads learns the bytes
of a text (by default the documentation that Python brings along); the converted model gets a
tenth of its steps: half for the feature maps, half for fine-tuning, whole or by LoRA.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from linattn_models.huggingface import convert, transfer_attention

LENGTH, BATCH = 256, 16  # tokens in a sequence, sequences in a step
WARM_UP = 20  # steps


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", type=Path, help="a file of 100 kB or more")
    parser.add_argument("--steps", type=int, default=2000, help="of the teacher's training")
    parser.add_argument("--width", type=int, default=128, help="of the model")
    parser.add_argument("--features", type=int, default=64, help="of each head's map")
    parser.add_argument("--lora", action="store_true", help="fine-tune by LoRA, not whole")
    return parser.parse_args()


def bytes_of(path: Path | None) -> Tensor:
    """The text as (length,) int64 in 0..255."""
    if path is not None:
        content = path.read_bytes()
    else:
        from pydoc_data.topics import topics

        content = "\n".join(topics[name] for name in sorted(topics)).encode()
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).long()


def batches(data: Tensor, steps: int, seed: int) -> Iterator[Tensor]:
    """(BATCH, LENGTH) each, from random places."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(data) - LENGTH, (BATCH, 1), generator=generator)
        yield data[starts + torch.arange(LENGTH)]


def train(model: Any, data: Tensor, steps: int, rate: float, seed: int) -> None:
    """AdamW with a warm-up and a cosine down to 0, on the weights that require gradients."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, rate, betas=(0.9, 0.95), weight_decay=0.1)
    warm_up = min(WARM_UP, max(1, steps // 5))

    def share(step: int) -> float:
        return min(1.0, (step + 1) / warm_up) * (1 + math.cos(math.pi * step / steps)) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    model.train()
    for tokens in batches(data, steps, seed):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
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
        for tokens in batches(held_out, 20, seed=0)
    ]
    return torch.stack(losses).mean().item()


@torch.no_grad()
def step_times(model: Any, tokens: int) -> tuple[float, float]:
    """Milliseconds a token of greedy generation, over the first and over the last tenth."""
    cache, token = DynamicCache(), torch.zeros(1, 1, dtype=torch.int64)
    clock = [time.perf_counter()]
    for _ in range(tokens):
        token = model(input_ids=token, past_key_values=cache, use_cache=True).logits.argmax(-1)
        clock.append(time.perf_counter())
    tenth = max(1, tokens // 10)
    first, last = clock[tenth] - clock[0], clock[-1] - clock[-1 - tenth]
    return 1000 * first / tenth, 1000 * last / tenth


def fine_tuned(model: Any, data: Tensor, steps: int, lora: bool) -> Any:
    """The converted model after so many steps."""
    if not lora:
        train(model, data, steps, 1e-3, seed=3)
        return model
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    adapted = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=targets))
    train(adapted, data, steps, 2e-3, seed=3)
    return adapted.merge_and_unload()


def main() -> None:
    """Prints a table."""
    chosen = options()
    torch.manual_seed(0)
    data = bytes_of(chosen.text)
    data, held_out = data[: -len(data) // 10], data[-len(data) // 10 :]
    config = LlamaConfig(
        vocab_size=256, hidden_size=chosen.width, intermediate_size=3 * chosen.width,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=4096, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    teacher = LlamaForCausalLM(config)
    start = time.perf_counter()
    train(teacher, data, chosen.steps, 2e-3, seed=1)
    print(f"teacher: {chosen.steps} steps in {time.perf_counter() - start:.0f} s", flush=True)
    student = convert(copy.deepcopy(teacher), num_features=chosen.features)
    half = max(1, chosen.steps // 20)
    results = {"softmax, the teacher": nats(teacher, held_out)}
    results["converted, maps untrained"] = nats(student, held_out)
    errors = transfer_attention(student, batches(data, half, seed=2))
    print(f"transfer: error {errors[0]:.4f} to {errors[-1]:.4f} in {half} steps", flush=True)
    results[f"after {half} steps of attention transfer"] = nats(student, held_out)
    student = fine_tuned(student, data, half, chosen.lora)
    name = "LoRA" if chosen.lora else "the whole model"
    results[f"after {half} more steps of {name}"] = nats(student, held_out)
    print("\n| model | nats a byte | above the teacher |\n|---|---|---|")
    for name, value in results.items():
        print(f"| {name} | {value:.3f} | {value - results['softmax, the teacher']:.3f} |")
    length = min(2000, 10 * chosen.steps)
    print(f"\n| {length} tokens | ms a token, first tenth | last tenth |\n|---|---|---|")
    for name, model in (("softmax", teacher), ("converted", student)):
        print("| {} | {:.2f} | {:.2f} |".format(name, *step_times(model, length)))


if __name__ == "__main__":
    main()
