"""Utterances as training data: batches of similar lengths, bounded by frames; random masks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from linattn_models import ctc_frames_needed
from speech.augment import augment
from speech.features import Frames
from speech.running import Prior, RunningNorm

Batch = dict[str, Tensor]

# Bands of time: how many, their most frames, and the largest share of an utterance of one.
TIME_MASKS, TIME_WIDTH, TIME_SHARE = 2, 40, 0.2
BIN_MASKS, BIN_WIDTH = 2, 8  # bands of frequency: how many, and their most bins
JITTER = 0.1  # how far, as a share, lengths are moved before they are sorted


def mask_bands(frames: Tensor) -> Tensor:
    """A copy of the frames (T, F) in which bands of time and of frequency are 0, the mean.

    As SpecAugment (Park et al. 2019), without time warping; drawn from torch's generator.
    """
    frames = frames.clone()
    length, bins = frames.shape
    widest = min(TIME_WIDTH, int(length * TIME_SHARE))
    for _ in range(TIME_MASKS):
        frames[_draw_band(length, widest)] = 0.0
    for _ in range(BIN_MASKS):
        frames[:, _draw_band(bins, BIN_WIDTH)] = 0.0
    return frames


def _draw_band(size: int, widest: int) -> slice:
    width = int(torch.randint(widest + 1, ()))
    start = int(torch.randint(size - width + 1, ()))
    return slice(start, start + width)


class Speech:
    """Utterances to train on or to evaluate.

    Args:
        frames: of each utterance, one array for each speed, of which a batch draws one.
        classes: the labels of each, as numbers from 1.
        masked: whether `mask_bands` masks the frames of a batch.
        prior: the running normalization of each utterance begins here; None if frames are
            normalized already.
        augmented: whether `augment` changes the frames of a batch.
    """

    def __init__(
        self,
        frames: Sequence[Sequence[Frames]],
        classes: Sequence[Sequence[int]],
        masked: bool = False,
        prior: Prior | None = None,
        augmented: bool = False,
    ) -> None:
        self.frames = frames
        self.classes = classes
        self.masked = masked
        self.prior = prior
        self.augmented = augmented

    def __len__(self) -> int:
        return len(self.frames)

    def lengths(self) -> list[int]:
        """The frames of each utterance, at the slowest speed."""
        return [max(map(len, speeds)) for speeds in self.frames]

    def batch(self, indices: Tensor) -> Batch:
        """The utterances at `indices` (B,), padded on the right.

        Every random draw is from torch's generator, whose state a resumed run restores.

        Returns:
            "frames" (B, T, 40) float32, "lengths" (B,), "targets" (B, S) int64 with the labels, and
            "target_lengths" (B,).
        """
        places = indices.tolist()
        drawn = [self._frames(place) for place in places]
        frames = [item for item, _ in drawn]
        targets = [
            torch.tensor(self.classes[place] if speech else [], dtype=torch.int64)
            for place, (_, speech) in zip(places, drawn, strict=True)
        ]
        return {
            "frames": pad_sequence(frames, batch_first=True),
            "lengths": torch.tensor([len(item) for item in frames]),
            "targets": pad_sequence(targets, batch_first=True),
            "target_lengths": torch.tensor([len(item) for item in targets]),
        }

    def _frames(self, place: int) -> tuple[Tensor, bool]:
        """The frames of an utterance, and whether its labels are in them."""
        speeds, spoken = self.frames[place], True
        drawn = int(torch.randint(len(speeds), ())) if len(speeds) > 1 else 0
        frames = torch.from_numpy(speeds[drawn]).float()
        if self.augmented:
            frames, spoken = augment(frames)
        if self.prior is not None:
            frames = torch.from_numpy(RunningNorm(self.prior)(frames.numpy()))
        return mask_bands(frames) if self.masked else frames, spoken


class LengthOrder:
    """Batches of utterances of similar length: the first epoch from short to long, then shuffled.

    Epoch e is a function of the seed and e, and batch n of those before it.

    Args:
        lengths: the frames of each utterance.
        batch_size: the most utterances of a batch.
        batch_frames: the most frames of a batch, padding included; a longer utterance is alone.
        seed: that of the run.
    """

    def __init__(
        self, lengths: Sequence[int], batch_size: int, batch_frames: int, seed: int
    ) -> None:
        self.lengths = torch.tensor(lengths)
        self.batch_size = batch_size
        self.batch_frames = batch_frames
        self.seed = seed
        self._ends: list[int] = []  # the steps at which the epochs so far end
        self._batches: list[Tensor] = []  # of the last of them

    def indices(self, step: int) -> Tensor:
        """The utterances of the update that follows `step` others."""
        if self._ends and step < self._ends[-1] - len(self._batches):
            self._ends.clear()
        while not self._ends or step >= self._ends[-1]:
            self._batches = self.epoch(len(self._ends))
            begin = self._ends[-1] if self._ends else 0
            self._ends.append(begin + len(self._batches))
        return self._batches[step - self._ends[-1]]

    def epoch(self, number: int) -> list[Tensor]:
        """The batches of an epoch; each utterance is in one of them."""
        seed = hashlib.sha256(f"lengths {self.seed} {number}".encode()).digest()[:4]
        generator = torch.Generator().manual_seed(int.from_bytes(seed, "big"))
        moved = self.lengths * (1 + JITTER * torch.rand(len(self.lengths), generator=generator))
        batches = list(self._cut((self.lengths if number == 0 else moved).argsort(stable=True)))
        if number == 0:
            return batches
        return [batches[place] for place in torch.randperm(len(batches), generator=generator)]

    def _cut(self, order: Tensor) -> Iterator[Tensor]:
        begin, longest = 0, 0
        lengths = self.lengths[order].tolist()
        for place, length in enumerate(lengths):
            count = place - begin
            longest = max(longest, length)
            if count and (count == self.batch_size or (count + 1) * longest > self.batch_frames):
                yield order[begin:place]
                begin, longest = place, length
        yield order[begin:]


class BatchCycle:
    """The same few batches in turn.

    Args:
        batches: the utterances of each.
    """

    def __init__(self, batches: Sequence[Tensor]) -> None:
        self.batches = batches

    def indices(self, step: int) -> Tensor:
        """The utterances of the update that follows `step` others."""
        return self.batches[step % len(self.batches)]


def pick_typical_batches(order: LengthOrder) -> BatchCycle:
    """Three batches of short, medium and long utterances, by which updates are timed.

    Each is the middle one of a third of all batches, sorted by length.
    """
    batches = order.epoch(0)
    return BatchCycle([batches[part * len(batches) // 6] for part in (1, 3, 5)])


def find_fault(
    lengths: Sequence[int], classes: Sequence[int], subsampling: int, max_frames: int
) -> tuple[str, str, int] | None:
    """Why CTC cannot learn from an utterance; None if it can.

    Args:
        lengths: the frames of the utterance at each speed.
        classes: its labels.
        subsampling: frames of audio for each frame of the model.
        max_frames: the most frames of an utterance.

    Returns:
        The reason, what was expected, and what came.
    """
    labels = torch.tensor([classes], dtype=torch.long)
    needed = max(1, int(ctc_frames_needed(labels, torch.tensor([len(classes)]))))
    room = -(-min(lengths) // subsampling)
    if needed > room:
        return "more labels than frames", f"{needed} frames for {len(classes)} labels", room
    if max(lengths) > max_frames:
        return f"more than {max_frames} frames", f"at most {max_frames} frames", max(lengths)
    return None
