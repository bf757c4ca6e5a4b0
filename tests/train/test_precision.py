"""fp16 with a loss scale, on the CPU: gradients that overflow cost a pass over the batch, and no step."""

import os
import signal

import pytest
import torch
from logged import config

from softprune.core.state_file import read_state
from softprune.train.observer import Silent
from softprune.train.run import resume, train
from softprune.train.run_folder import RunFolder

FIRST_SCALE = 2.0**16


def fp16(stumbles, *changes):
    return config(
        "model=own_parts:Stumbling",
        f"model.args={{stumbles: {stumbles}}}",
        "precision=fp16",
        "log.every_steps=1",
        "ema=0.9",
        *changes,
    )


def final(folder):
    return read_state(sorted((folder / "checkpoints").glob("step-*"))[-1])


def steps(folder):
    return [row for row in RunFolder(folder).metrics() if row["kind"] == "step"]


@pytest.mark.parametrize("changes", [(), ("clip_norm=1.0",), ("accumulate=2",)], ids=str)
def test_an_overflow_costs_a_pass_and_no_step(tmp_path, changes):
    parts = 2 if "accumulate=2" in changes else 1
    train(fp16([]), tmp_path / "smooth")
    # The last part of the seventh batch.
    train(fp16([7 * parts], *changes), tmp_path / "stumbling")
    (smooth, _), (tensors, facts) = final(tmp_path / "smooth"), final(tmp_path / "stumbling")
    assert facts["scaler"]["scale"] == FIRST_SCALE / 2
    assert facts["progress"]["step"] == facts["sparsifier"]["step"] == 15
    assert tensors["average.n_averaged"] == smooth["average.n_averaged"] == 15
    assert tensors["model.passes"] == (15 + 1) * parts
    one, other = steps(tmp_path / "smooth"), steps(tmp_path / "stumbling")
    assert [row["lr"] for row in one] == [row["lr"] for row in other]
    if not changes:
        # The seventh loss is that of the seventh batch again, with weights that have not moved in between.
        assert [row["loss"] for row in one[:7]] == [row["loss"] for row in other[:7]]
    assert other[-1]["loss"] < other[0]["loss"]


def test_several_overflows_in_a_row_move_nothing(tmp_path):
    for name, stumbles in (("smooth", []), ("stumbling", [1, 2, 3])):
        train(fp16(stumbles, "epochs=1"), tmp_path / name)
    tensors, facts = final(tmp_path / "stumbling")
    assert facts["scaler"]["scale"] == FIRST_SCALE / 8
    assert tensors["average.n_averaged"] == 5 and tensors["model.passes"] == 8
    one, other = (steps(tmp_path / name)[0]["loss"] for name in ("smooth", "stumbling"))
    assert one == other


class Signal(Silent):
    def __init__(self, step):
        self._step = step

    def on_step(self, progress):
        if progress.step == self._step:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("stop", [3, 7, 8])
def test_a_run_that_was_stopped_goes_on_bit_for_bit_with_its_scale(tmp_path, stop):
    given = fp16([3, 4, 9])
    train(given, tmp_path / "whole")
    assert not train(given, tmp_path / "parts", observer=Signal(stop)).finished
    assert resume(tmp_path / "parts", trust=True).finished
    (whole, facts), (parts, other) = final(tmp_path / "whole"), final(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    assert [name for name, t in whole.items() if not torch.equal(t, parts[name])] == []
    assert facts["scaler"] == other["scaler"] and facts["scaler"]["scale"] == FIRST_SCALE / 8
    assert facts["sparsifier"] == other["sparsifier"]


def test_gradients_that_always_overflow_end_the_run_with_their_name(tmp_path):
    message = r"gradients overflow fp16 at step 3 without any loss scale; not finite: the gradient of probe\..*bf16"
    with pytest.raises(FloatingPointError, match=message):
        train(fp16(list(range(3, 100))), tmp_path / "run")
    assert [row["step"] for row in steps(tmp_path / "run")] == [1, 2]


def test_a_large_gradient_overflows_for_real_until_the_scale_is_low_enough(tmp_path):
    train(
        config(
            "model=own_parts:loud_probe", "model.args={}", "precision=fp16", "log.every_steps=1", "optimizer.lr=1e-5"
        ),
        tmp_path / "run",
    )
    _, facts = final(tmp_path / "run")
    assert 1 <= facts["scaler"]["scale"] < FIRST_SCALE
    assert facts["progress"]["step"] == facts["sparsifier"]["step"] == 15
