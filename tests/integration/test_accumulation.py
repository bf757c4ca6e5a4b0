"""Two processes that accumulate the gradients of parts: the step of the whole batch, and one exchange for each."""

import json

import pytest
import torch
from launch import SEVERAL_PROCESSES, WORKERS

from softprune.core.state_file import read_state
from softprune.train.run_folder import RunFolder
from warm import run_on_two

pytestmark = SEVERAL_PROCESSES

STEPS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("accumulation")
    run_on_two(WORKERS / "accumulation.py", folder)
    return folder


def final(folder):
    return read_state(sorted((folder / "checkpoints").glob("step-*"))[-1])


def facts_of(folder):
    """What the processes have found, in which they agree."""
    first, second = (json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    return first


def exchanges(folder):
    return facts_of(folder)["exchanges"]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_parts_give_the_step_of_the_whole_batch(folder, strategy):
    (whole, _), (parts, _) = (final(folder / f"{strategy} {number} fp32") for number in (1, 4))
    assert whole.keys() == parts.keys()
    for name, t in whole.items():
        # Only the order of additions differs.
        torch.testing.assert_close(parts[name], t, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_gradients_are_exchanged_once_a_step_whatever_the_parts(folder, strategy):
    counted = exchanges(folder)
    once = counted[f"{strategy} 1 fp32"]
    assert once >= STEPS and once % STEPS == 0
    assert counted[f"{strategy} 4 fp32"] == once


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_gradients_that_overflow_on_one_process_are_made_again_on_both(folder, strategy, parts):
    run = folder / f"{strategy} {parts} fp16"
    _, facts = final(run)
    assert facts["scaler"]["scale"] == 2**15  # halved once
    assert facts["progress"]["step"] == facts["sparsifier"]["step"] == STEPS
    assert [row["step"] for row in RunFolder(run).metrics() if row["kind"] == "step"] == list(range(1, STEPS + 1))
    counted = exchanges(folder)
    assert counted[f"{strategy} {parts} fp16"] == counted[f"{strategy} 1 fp32"] // STEPS * (STEPS + 1)


def test_only_the_first_process_logs(folder):
    for run in folder.glob("* fp*"):
        assert len(list((run / "tensorboard").iterdir())) == 1
    assert len(list(folder.glob("* fp*"))) == 8


def test_what_fails_on_the_first_process_fails_on_all(folder):
    refusals = facts_of(folder)["refusals"]
    assert "already holds a run" in refusals["taken"]
    assert refusals["unwilling"] == "log.accumulation:Unwilling could not begin: no key"
