"""Log-mel features against the package they are defined by, and against a transcription of the definition."""

import numpy as np
import pytest
import torch

from softprune.train.data.speech import front_padded, log_mel


def clips():
    random = np.random.default_rng(0)
    t = np.arange(16_000) / 16_000
    tone = 8000 * np.sin(2 * np.pi * 440 * t)
    noise = random.normal(0, 2000, 16_000)
    late = np.where(t < 0.5, 0, noise)
    return np.stack([tone, noise, late, np.zeros(16_000)]).astype(np.int16)


def by_hand(clip):
    """Each frame on its own, with a plain sum over the Fourier transform and loops over the filters."""
    clip = clip.astype(np.float64)
    sharp = np.append(clip[0], clip[1:] - 0.97 * clip[:-1])
    sharp = np.append(sharp, np.zeros(80))
    mel = np.arange(34) * 2595 * np.log10(1 + 8000 / 700) / 33
    edges = [int(513 * 700 * (10 ** (m / 2595) - 1) / 16_000) for m in mel]
    window = 0.54 - 0.46 * np.cos(2 * np.pi * np.arange(400) / 399)
    features = np.empty((99, 32))
    for frame in range(99):
        spectrum = np.fft.fft(sharp[160 * frame : 160 * frame + 400] * window, 512)[:257]
        power = (spectrum.real**2 + spectrum.imag**2) / 512
        for band in range(32):
            left, middle, right = edges[band : band + 3]
            total = sum(power[k] * (k - left) / (middle - left) for k in range(left, middle))
            total += sum(power[k] * (right - k) / (right - middle) for k in range(middle, right))
            features[frame, band] = np.log(total + 1e-10)
    return features


def test_the_features_are_those_of_the_definition():
    found = log_mel(torch.from_numpy(clips()))
    assert found.shape == (4, 99, 32)
    assert found.dtype == torch.float32
    for clip, features in zip(clips(), found.numpy(), strict=True):
        np.testing.assert_allclose(features, by_hand(clip), rtol=0, atol=1e-4)


def test_the_features_are_those_of_python_speech_features():
    package = pytest.importorskip("python_speech_features", reason="the development extra is not installed")
    for clip, features in zip(clips(), log_mel(torch.from_numpy(clips())).numpy(), strict=True):
        bands, _ = package.fbank(clip, 16_000, winlen=0.025, winstep=0.01, nfilt=32, winfunc=np.hamming)
        np.testing.assert_allclose(features, np.log(bands + 1e-10), rtol=0, atol=1e-4)


def test_silence_is_finite():
    assert log_mel(torch.zeros(1, 16_000)).max().item() == pytest.approx(np.log(1e-10), rel=1e-6)


def test_short_clips_get_their_zeros_in_front():
    padded = front_padded(torch.tensor([1, 2, 3]))
    assert len(padded) == 16_000
    assert padded[-4:].tolist() == [0, 1, 2, 3]


def test_clips_of_another_length_are_refused():
    with pytest.raises(ValueError, match=r"clips are \[n, 16000\]; got \(2, 8000\)"):
        log_mel(torch.zeros(2, 8000))
