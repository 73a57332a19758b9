"""Utterances as training data: batches of similar lengths, bounded by frames."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from linattn_core.errors import expected
from speech.augmentation import SpecAugment
from speech.corpora import BadInput
from speech.features import Frames

Batch = dict[str, Tensor]

JITTER = 0.1  # how far, as a share, lengths are moved before they are sorted


class Speech:
    """Utterances to train on or to evaluate.

    Args:
        frames: of each utterance, one array for each speed; the first is the speech as it is.
        classes: the phones of each, as numbers from 1.
        augment: masks of the frames; None for none. With it, a speed is drawn as well.
    """

    def __init__(
        self,
        frames: Sequence[Sequence[Frames]],
        classes: Sequence[Sequence[int]],
        augment: SpecAugment | None = None,
    ) -> None:
        self.frames = frames
        self.classes = classes
        self.augment = augment

    def __len__(self) -> int:
        return len(self.frames)

    def lengths(self) -> list[int]:
        """The frames of each utterance, at the slowest speed."""
        return [max(map(len, speeds)) for speeds in self.frames]

    def batch(self, indices: Tensor) -> Batch:
        """The utterances at `indices` (B,), padded on the right.

        Every random draw is from torch's generator, which a resumed run has back.

        Returns:
            "frames" (B, T, 40) float32, "lengths" (B,), "targets" (B, S) int64 with the phones, and
            "target_lengths" (B,).
        """
        places = indices.tolist()
        frames = [self._frames(place) for place in places]
        targets = [torch.tensor(self.classes[place], dtype=torch.int64) for place in places]
        return {
            "frames": pad_sequence(frames, batch_first=True),
            "lengths": torch.tensor([len(item) for item in frames]),
            "targets": pad_sequence(targets, batch_first=True),
            "target_lengths": torch.tensor([len(item) for item in targets]),
        }

    def _frames(self, place: int) -> Tensor:
        speeds = self.frames[place]
        drawn = int(torch.randint(len(speeds), ())) if self.augment and len(speeds) > 1 else 0
        frames = torch.from_numpy(speeds[drawn]).float()
        return self.augment.masked(frames) if self.augment else frames


class LengthOrder:
    """Batches of utterances of similar length: the first epoch from short to long, then shuffled.

    Epoch e is a function of the seed and e, and batch n of those before it.

    Args:
        lengths: the frames of each utterance.
        batch_size: the most utterances of a batch.
        batch_frames: the most frames of a batch, padding included; a longer utterance is alone.
        seed: that of the run.

    Raises:
        ValueError: there is no utterance.
    """

    def __init__(
        self, lengths: Sequence[int], batch_size: int, batch_frames: int, seed: int
    ) -> None:
        if not lengths:
            raise ValueError(expected("the training set", "an utterance", "none"))
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


class TypicalOrder:
    """Batches by which updates are timed: short, medium and long utterances in turn.

    Args:
        order: whose batches are timed.
        parts: how many batches, each the middle one of a part of all, sorted by length.
    """

    def __init__(self, order: LengthOrder, parts: int = 3) -> None:
        batches = order.epoch(0)
        self._batches = [batches[(2 * p + 1) * len(batches) // (2 * parts)] for p in range(parts)]

    def indices(self, step: int) -> Tensor:
        """The utterances of the update that follows `step` others."""
        return self._batches[step % len(self._batches)]


class LongestOrder:
    """The batch of the longest utterances, for every update.

    Args:
        order: whose batch it is.
    """

    def __init__(self, order: LengthOrder) -> None:
        self._longest = order.epoch(0)[-1]

    def indices(self, step: int) -> Tensor:
        """The same utterances for every step."""
        return self._longest


def usable(
    frames: Sequence[Sequence[int]],
    classes: Sequence[Sequence[int]],
    names: Sequence[str],
    *,
    corpus: str,
    subsampling: int,
    max_frames: int,
    bad_input: BadInput,
    skipped: Counter[str],
) -> list[int]:
    """The places of the utterances that CTC can align and that are not too long.

    Args:
        frames: the lengths of each utterance, one for each speed.
        classes: the phones of each.
        names: for errors.
        corpus: the corpus and the split, for errors.
        subsampling: frames of audio for each frame of the model.
        max_frames: of an utterance.
        bad_input: whether the others are refused, or left out and counted in `skipped`.

    Raises:
        ValueError: naming the first that is not usable, or if no usable one has a phone.
    """
    places = []
    for place, (lengths, phones, name) in enumerate(zip(frames, classes, names, strict=True)):
        needed, room = max(1, frames_needed(phones)), -(-min(lengths) // subsampling)
        if needed > room:
            problem = expected(name, f"{needed} frames for {len(phones)} phones", room)
            reason = "more phones than frames"
        elif max(lengths) > max_frames:
            problem = expected(name, f"at most {max_frames} frames", max(lengths))
            reason = f"more than {max_frames} frames"
        else:
            places.append(place)
            continue
        if bad_input == "refuse":
            advice = "leave such utterances out with --bad-input skip"
            raise ValueError(f"{problem.rstrip('.')}; {advice}.")
        skipped[reason] += 1
    if not any(classes[place] for place in places):
        wanted = "an utterance with phones that CTC can align"
        raise ValueError(expected(corpus, wanted, "none"))
    return places


def frames_needed(classes: Sequence[int]) -> int:
    """The fewest frames that CTC aligns phones to: one each, and a blank between equal ones."""
    repeats = sum(one == other for one, other in itertools.pairwise(classes))
    return len(classes) + repeats
