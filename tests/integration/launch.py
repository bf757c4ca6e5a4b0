"""Several processes on one machine and one thread each, by torchrun itself too, and what they have found."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

WORKERS = Path(__file__).parent / "workers"

# Put on a whole module: pytestmark = SEVERAL_PROCESSES
SEVERAL_PROCESSES = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch was built without gloo"),
]


def torchrun(processes, *words, check=True):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes, *words]
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0 or not check, done.stderr[-4000:]
    return done


def tensors_of(folder, processes=2):
    """What each process has left in FOLDER/RANK.safetensors."""
    return [load_file(folder / f"{rank}.safetensors") for rank in range(processes)]


def part(results, name):
    """The results below a name, without it."""
    found = {key.removeprefix(f"{name}/"): t for key, t in results.items() if key.startswith(f"{name}/")}
    assert found
    return found


def differing(one, other):
    """The keys that only one of the two has, or whose tensors are not the same bit for bit."""
    unequal = {k for k in one.keys() & other.keys() if not torch.equal(_bits(one[k]), _bits(other[k]))}
    return sorted((one.keys() ^ other.keys()) | unequal)


def _bits(t):
    return t.reshape(-1).view(torch.uint8)
