"""Log-mel features: how loud a second of speech is in 32 bands of frequency, a hundred times a second.

The definitions are those of the package python_speech_features with a Hamming window, which FastGRNN's authors used.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

RATE = 16_000
CLIP = RATE
WINDOW, HOP, FFT = 400, 160, 512  # 25 ms, 10 ms
FILTERS = 32
EMPHASIS = 0.97
FRAMES = 99
# Silence has a finite logarithm.
FLOOR = 1e-10


def log_mel(clips: Tensor) -> Tensor:
    """The features of clips of one second.

    Args:
        clips: [n, 16000], on the scale of 16-bit integers.

    Returns:
        float32 [n, 99, 32].

    >>> log_mel(torch.zeros(1, 16000)).shape
    torch.Size([1, 99, 32])
    """
    if clips.dim() != 2 or clips.shape[1] != CLIP:
        raise ValueError(f"clips are [n, {CLIP}]; got {tuple(clips.shape)}")
    clips = clips.double()
    sharp = torch.cat([clips[:, :1], clips[:, 1:] - EMPHASIS * clips[:, :-1]], 1)
    frames = F.pad(sharp, (0, (FRAMES - 1) * HOP + WINDOW - CLIP)).unfold(1, WINDOW, HOP)
    window = torch.hamming_window(WINDOW, periodic=False, dtype=torch.float64)
    power = torch.fft.rfft(frames * window, n=FFT).abs().square() / FFT
    bands = power @ _filters().T
    # The package puts a tiny number in the place of an exact zero; it vanishes beside the floor.
    return (bands + FLOOR).log().float()


def front_padded(samples: Tensor) -> Tensor:
    """A clip of at most a second with zeros in front, so that it is one second long."""
    return F.pad(samples, (CLIP - len(samples), 0))


@cache
def _filters() -> Tensor:
    """Triangles [filters, bins] between neighbouring points that are equally far apart in mel."""
    top = 2595 * torch.log10(torch.tensor(1 + RATE / 2 / 700, dtype=torch.float64))
    mel = torch.linspace(0, 1, FILTERS + 2, dtype=torch.float64) * top
    hertz = 700 * (10 ** (mel / 2595) - 1)
    edges = ((FFT + 1) * hertz / RATE).floor()
    left, middle, right = (edges[k : k + FILTERS, None] for k in range(3))
    bins = torch.arange(FFT // 2 + 1, dtype=torch.float64)
    rising = (bins - left) / (middle - left)
    falling = (right - bins) / (right - middle)
    up, down = (bins >= left) & (bins < middle), (bins >= middle) & (bins < right)
    return torch.where(up, rising, 0.0) + torch.where(down, falling, 0.0)
