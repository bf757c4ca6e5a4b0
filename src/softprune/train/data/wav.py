"""Clips of sound: wav files as Speech Commands has them, 16 bit, one channel, 16 kHz."""

from __future__ import annotations

import struct
import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from softprune.train.data.bounded import open_regular
from softprune.train.data.origin import damaged

RATE = 16_000


def read_wav(path: Path, *, name: str, longest: int) -> NDArray[np.int16]:
    """The samples of a clip.

    Args:
        path: the file.
        name: the data set, for the messages.
        longest: samples that it may have.

    Raises:
        ValueError: for a file of another kind, another rate, several channels, or one that is too long or cut short.
    """
    try:
        with open_regular(path, name=name) as whole, wave.open(whole) as file:
            facts = file.getparams()
            # The header may promise 4 GB, and room for them would be made first.
            _check_header(path, facts, name=name, longest=longest)
            content = file.readframes(facts.nframes)
    except (wave.Error, EOFError, struct.error, OverflowError) as error:
        raise damaged(path, f"expected a wav file of 16-bit numbers, found: {error}", name=name) from error
    if len(content) != 2 * facts.nframes:
        raise damaged(path, f"expected {facts.nframes} samples, found {len(content) // 2}: cut short", name=name)
    return np.frombuffer(content, "<i2").astype(np.int16)


def _check_header(path: Path, facts: wave._wave_params, *, name: str, longest: int) -> None:
    if facts.framerate != RATE:
        raise damaged(path, f"expected {RATE} samples a second, found {facts.framerate}", name=name)
    if facts.nchannels != 1:
        raise damaged(path, f"expected one channel, found {facts.nchannels}", name=name)
    if facts.sampwidth != 2:
        raise damaged(path, f"expected 16 bits a sample, found {8 * facts.sampwidth}", name=name)
    if facts.nframes > longest:
        raise damaged(path, f"expected at most {longest} samples, found {facts.nframes}", name=name)
