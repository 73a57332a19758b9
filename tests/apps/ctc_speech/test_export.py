"""An exported recognizer gives what torch gives, chunk by chunk, to the end of each stream."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from linattn_models.ctc import CTCTransformer, initial_stream_state, stream_flush, stream_step
from speech.export import export_recognizer
from speech.features import SMALLEST_DEVIATION
from speech.models import TrainedRun

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed, which torch.onnx needs")

pytestmark = [
    pytest.mark.slow,
    # torch 2.13 exports through a name that it has deprecated itself.
    pytest.mark.filterwarnings("ignore::FutureWarning:copyreg"),
]
CHUNK = 3  # output frames


@pytest.mark.parametrize("kernel", [1, 7])
def test_onnxruntime_streams_what_torch_streams(streaming_run: TrainedRun, kernel: int) -> None:
    assert isinstance(streaming_run.model, CTCTransformer)
    config = dataclasses.replace(streaming_run.model.config, depthwise_kernel=kernel)
    model = CTCTransformer(config).eval()
    run = dataclasses.replace(streaming_run, model=model)
    session = onnxruntime.InferenceSession(export_recognizer(run, CHUNK))
    described = session.get_modelmeta().custom_metadata_map
    assert json.loads(described["labels"]) == list(run.units.inventory)
    assert json.loads(described["normalization"])["smallest_deviation"] == SMALLEST_DEVIATION
    size = json.loads(described["chunk_frames"])
    assert size == CHUNK * 4
    inputs = {x.name: x.shape for x in session.get_inputs()}
    streams = 3
    lengths = torch.tensor([size, 5, 0])  # of the last chunk
    frames = torch.randn(streams, 4 * size, 40)
    frames[:, 3 * size :][torch.arange(size) >= lengths[:, None]] = 0.0
    names = [name for name in inputs if name not in ("frames", "lengths")]
    tensors = {name: torch.zeros(streams, *inputs[name][1:]).numpy() for name in names}
    state = initial_stream_state(model, streams)
    for place, chunk in enumerate(frames.split(size, 1)):
        own = lengths if place == 3 else torch.full((streams,), size)
        got, *following = session.run(
            None, {"frames": chunk.numpy(), "lengths": own.numpy(), **tensors}
        )
        tensors = dict(zip(names, following, strict=True))
        if place == 3:
            wanted = stream_flush(model, chunk, state, lengths)
        else:
            wanted, state = stream_step(model, chunk, state)
            for name, x in tensors.items():
                torch.testing.assert_close(
                    torch.from_numpy(x), getattr(state.tensors, name), rtol=1e-5, atol=1e-5
                )
        torch.testing.assert_close(torch.from_numpy(got).exp(), wanted.exp(), rtol=0, atol=1e-5)
