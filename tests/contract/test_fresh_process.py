"""A training that goes on in another process ends with the bits of one that was never interrupted."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fresh_resume import trial
from safetensors.torch import load_file
from tried import METHODS

from softprune.testing.trial import STEPS, unequal


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """One process for all methods."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("halves")
    for name in METHODS:
        first = trial(name)
        first.train(STEPS // 2)
        first.sparsifier.save(folder / name)
        torch.save(first.optimizer.state_dict(), folder / name / "optimizer.pt")
    worker = Path(__file__).with_name("fresh_resume.py")
    done = subprocess.run([sys.executable, worker, folder], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("name", METHODS)
def test_every_method_goes_on_in_a_fresh_process(resumed, name):
    whole = trial(name)
    whole.train(STEPS)
    assert unequal(load_file(resumed / f"{name}.safetensors"), whole.state()) == []
