"""Recognize a recording with an exported model, chunk by chunk, without torch and linattn.

    python -m pip install numpy kaldi-native-fbank onnxruntime
    python run_onnx.py model.onnx recording.wav

export_onnx.py writes the model. The recording has one channel of 16 bits at 16 kHz.
"""

import json
import sys
import wave

import kaldi_native_fbank
import numpy as np
import onnxruntime


class Recognizer:
    """Takes any number of samples at a time; `text` is what they have said so far."""

    def __init__(self, model: str) -> None:
        self.session = onnxruntime.InferenceSession(model)
        metadata = self.session.get_modelmeta().custom_metadata_map
        self.about = {name: json.loads(value) for name, value in metadata.items()}
        options = kaldi_native_fbank.FbankOptions()  # windows of 25 ms, one every 10 ms
        options.frame_opts.samp_freq = self.about["sample_rate"]
        options.frame_opts.dither = 0.0
        options.mel_opts.num_bins = self.about["features"]["bins"]
        self.bank, self.taken = kaldi_native_fbank.OnlineFbank(options), 0
        prior = self.about["normalization"]
        mean, self.weight = np.array(prior["mean"]), prior["frames"]
        self.moments = np.stack([mean, np.array(prior["variance"]) + mean**2])
        self.chunk = np.zeros((0, len(mean)), np.float32)  # frames that wait for others
        inputs = self.session.get_inputs()[2:]  # after frames and lengths
        self.state = {x.name: np.zeros((1, *x.shape[1:]), np.float32) for x in inputs}
        self.classes = [0]  # of each output frame, after a blank

    def accept(self, samples: np.ndarray, last: bool = False) -> None:
        """Recognizes the chunks that are whole with these samples (n,), in -1..1; `last`: all."""
        scaled = samples * np.float32(self.about["features"]["full_scale"])
        self.bank.accept_waveform(self.about["sample_rate"], scaled)
        while self.taken < self.bank.num_frames_ready:
            frame = self.normalize(self.bank.get_frame(self.taken))
            self.chunk, self.taken = np.append(self.chunk, frame[None], 0), self.taken + 1
            if len(self.chunk) == self.about["chunk_frames"]:
                self.recognize()
        if last and len(self.chunk):
            self.recognize()

    def normalize(self, frame: np.ndarray) -> np.ndarray:
        """The frame, normalized by the frames so far."""
        settings = self.about["normalization"]
        self.weight = min(self.weight + 1, settings["longest_memory_frames"])
        self.moments += (np.stack([frame, frame**2]) - self.moments) / self.weight
        mean, square = self.moments
        variance = np.maximum(square - mean**2, settings["smallest_deviation"] ** 2)
        return np.asarray((frame - mean) / np.sqrt(variance), np.float32)

    def recognize(self) -> None:
        """The most likely class of each output frame of a chunk; past its end it is the blank."""
        length = len(self.chunk)
        padded = np.pad(self.chunk, ((0, self.about["chunk_frames"] - length), (0, 0)))
        inputs = {"frames": padded[None], "lengths": np.array([length]), **self.state}
        outputs, *state = self.session.run(None, inputs)
        self.chunk, self.state = self.chunk[:0], dict(zip(self.state, state, strict=True))
        self.classes += outputs[0].argmax(-1).tolist()

    @property
    def text(self) -> str:
        """The phones, or the words that characters and pieces spell."""
        pairs = zip(self.classes, self.classes[1:], strict=False)
        said = [self.about["labels"][now - 1] for before, now in pairs if now not in (0, before)]
        between = " " if self.about["units"] == "phones" else ""
        return " ".join(between.join(said).replace("\u2581", " ").split())


if __name__ == "__main__":
    model, recording = sys.argv[1:]
    recognizer = Recognizer(model)
    with wave.open(recording) as file:
        while piece := file.readframes(1_600):
            recognizer.accept(np.frombuffer(piece, "<i2") / np.float32(32_768))
            print(f"\r{recognizer.text}", end="", flush=True)
    recognizer.accept(np.zeros(0, np.float32), last=True)
    print(f"\r{recognizer.text}")
