"""A recognizer that streams as an ONNX model, whose state is an input and an output."""

from __future__ import annotations

import importlib.util
import json
from copy import deepcopy
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_models.basics.packing import past_lengths
from linattn_models.ctc import StreamTensors, initial_stream_state
from linattn_models.ctc.recognizer import blank_past
from linattn_models.ctc.streaming import advance_stream
from speech.audio import RATE
from speech.features import BINS, FULL_SCALE, SMALLEST_DEVIATION, STEP_MS, WINDOW_MS
from speech.models import Recognizer, TrainedRun
from speech.online import require_streaming
from speech.running import LONGEST_MEMORY, Prior

FORMAT = "linattn streaming recognizer 1"


class ChunkStep(nn.Module):
    """`stream_step` and `stream_flush` as one function of tensors, for one size of chunk.

    Args:
        model: a causal recognizer, in evaluation mode.
    """

    def __init__(self, model: Recognizer) -> None:
        super().__init__()
        self.model = model
        self._start = initial_stream_state(model).tensors._asdict()
        self.names = [name for name, x in self._start.items() if x.numel()]

    def forward(self, frames: Tensor, lengths: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Log-probabilities (B, n, classes), and the next tensors of the state.

        Args:
            frames: (B, n * subsampling, F).
            lengths: (B,) int64, a stream's own frames: all, or at its end fewer. Past its output
                frames the blank is certain, and its next state means nothing.
            state: the tensors `names`.
        """
        empty = {name: x.expand(frames.shape[0], *x.shape[1:]) for name, x in self._start.items()}
        tensors = {**empty, **dict(zip(self.names, state, strict=True))}
        outputs, after = advance_stream(self.model, frames, StreamTensors(**tensors), lengths)
        ends = self.model.output_lengths(lengths)
        outputs = blank_past(outputs, past_lengths(ends, outputs.shape[1]))
        following = after._asdict()
        return outputs, *(following[name] for name in self.names)


def export_recognizer(run: TrainedRun, chunk: int) -> bytes:
    """The ONNX model of one step of the run's recognizer, for any number of streams side by side.

    Inputs are "frames", "lengths" and the tensors of the state, zeros at first; outputs are
    "log_probabilities" and the same tensors as "next_NAME".

    Args:
        run: of the preset streaming.
        chunk: output frames of a step.

    Raises:
        ValueError: a run of another preset, or onnxscript is not installed.
    """
    model, prior = require_streaming(run)
    if importlib.util.find_spec("onnxscript") is None:
        advice = "pip install onnxscript"
        raise ValueError(expected("the export", "the package onnxscript", "none", advice))
    model = deepcopy(model).cpu()
    step = ChunkStep(model).eval()
    start = initial_stream_state(model, batch=2).tensors._asdict()
    size = chunk * model.config.subsampling
    state = [start[name] for name in step.names]
    arguments = (torch.zeros(2, size, BINS), torch.full((2,), size), *state)
    batch = {0: torch.export.Dim.DYNAMIC}
    program = torch.onnx.export(
        step,
        arguments,
        input_names=["frames", "lengths", *step.names],
        output_names=["log_probabilities", *(f"next_{name}" for name in step.names)],
        dynamic_shapes=({0: "batch"}, batch, (batch,) * len(state)),
        dynamo=True,
        verbose=False,
    )
    assert program is not None  # with dynamo=True
    content = program.model_proto
    for key, value in describe(run, prior, chunk).items():
        content.metadata_props.add(key=key, value=value)
    return bytes(content.SerializeToString())


def describe(run: TrainedRun, prior: Prior, chunk: int) -> dict[str, str]:
    """What a program needs beside the model to run it, as JSON."""
    subsampling = run.model.config.subsampling
    values: dict[str, Any] = {
        "format": FORMAT,
        "run": run.label,
        "sample_rate": RATE,
        "features": {
            "kind": "Kaldi's log mel filterbank, without dither",
            "bins": BINS,
            "window_ms": WINDOW_MS,
            "step_ms": STEP_MS,
            "full_scale": FULL_SCALE,
        },
        "normalization": {
            **asdict(prior),
            "longest_memory_frames": LONGEST_MEMORY,
            "smallest_deviation": SMALLEST_DEVIATION,
        },
        "chunk": chunk,
        "subsampling": subsampling,
        "chunk_frames": chunk * subsampling,
        "chunk_seconds": chunk * subsampling * STEP_MS / 1_000,
        "blank": 0,
        "units": run.units.kind,
        "labels": list(run.units.inventory),
    }
    return {name: json.dumps(value) for name, value in values.items()}
