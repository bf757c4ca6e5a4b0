"""Clips of sound: wav files as Speech Commands has them, 16 bit, one channel, 16 kHz."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from softprune.train.data.origin import damaged

RATE = 16_000


def read_wav(path: Path, *, name: str, longest: int | None = None) -> NDArray[np.int16]:
    """The samples of a clip.

    Args:
        path: the file.
        name: the data set, for the messages.
        longest: samples that it may have; any number by default.

    Raises:
        ValueError: for a file of another kind, another rate, several channels, or one that is cut short.
    """
    try:
        with wave.open(str(path)) as file:
            facts = file.getparams()
            content = file.readframes(facts.nframes)
    except (wave.Error, EOFError) as error:
        raise damaged(path, f"expected a wav file of 16-bit numbers, found: {error}", name=name) from error
    if facts.framerate != RATE:
        raise damaged(path, f"expected {RATE} samples a second, found {facts.framerate}", name=name)
    if facts.nchannels != 1:
        raise damaged(path, f"expected one channel, found {facts.nchannels}", name=name)
    if facts.sampwidth != 2:
        raise damaged(path, f"expected 16 bits a sample, found {8 * facts.sampwidth}", name=name)
    if len(content) != 2 * facts.nframes:
        raise damaged(path, f"expected {facts.nframes} samples, found {len(content) // 2}: cut short", name=name)
    if longest is not None and facts.nframes > longest:
        raise damaged(path, f"expected at most {longest} samples, found {facts.nframes}", name=name)
    return np.frombuffer(content, "<i2").astype(np.int16)
