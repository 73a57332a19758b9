"""Frames as another recording would have them: louder or softer, with noise, between silences.

All on log-mel energies, and drawn from torch's generator, whose state a resumed run restores.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FLOOR = -15.942385  # Kaldi's logarithm of no energy
GAIN_DB = (-20.0, 10.0)
NOISE_SHARE, NOISE_SNR_DB = 0.3, (15.0, 40.0)
SILENCE_SHARE, LONGEST_SILENCE = 0.5, 50  # frames, before and after
DIGITAL_SHARE = 0.2  # of silences that are zeros
NOISE_ALONE_SHARE = 0.02  # utterances of which only noise is left, without phones
_DB = math.log(10.0) / 10.0


def augment(frames: Tensor) -> tuple[Tensor, bool]:
    """Other frames for these (T, F) log-mel energies, and whether they still have speech."""
    if _draw(0, 1) < NOISE_ALONE_SHARE:
        level = frames.mean() - _draw(*NOISE_SNR_DB) * _DB
        return change_level(_noise(len(frames), frames.shape[1], level), _draw(*GAIN_DB)), False
    if _draw(0, 1) < SILENCE_SHARE:
        frames = torch.cat([_silence(frames), frames, _silence(frames)])
    if _draw(0, 1) < NOISE_SHARE:
        level = frames.mean() - _draw(*NOISE_SNR_DB) * _DB
        frames = torch.logaddexp(frames, _noise(len(frames), frames.shape[1], level))
    return change_level(frames, _draw(*GAIN_DB)), True


def change_level(frames: Tensor, decibels: float) -> Tensor:
    """The frames of the same recording, louder by so much."""
    return (frames + decibels * _DB).clamp(min=FLOOR)


def _silence(frames: Tensor) -> Tensor:
    """Up to half a second of the recording's own background, or of zeros."""
    shape = (int(torch.randint(LONGEST_SILENCE + 1, ())), frames.shape[1])
    if _draw(0, 1) < DIGITAL_SHARE:
        return torch.full(shape, FLOOR)
    return frames.quantile(0.05, dim=0) + _flicker(shape)


def _noise(length: int, bins: int, level: Tensor) -> Tensor:
    """Steady noise whose spectrum falls or rises evenly, by up to 20 dB to each side."""
    tilt = _draw(-20, 20) * _DB * torch.linspace(-1, 1, bins)
    return level + tilt + _flicker((length, bins))


def _flicker(shape: tuple[int, int]) -> Tensor:
    """What frames of noise differ by: a bin is a sum of a few random energies."""
    return 0.5 * torch.randn(shape)


def _draw(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))
