"""The second half of trainings in a fresh process: ``fresh_resume.py FOLDER``, where the first halves were saved."""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tried import METHODS

from softprune.testing.trial import NETWORKS, STEPS, Setting, Trial, hastened


def trial(name):
    """On the network with the most kinds of state."""
    method = hastened(METHODS[name])
    return Trial(method, Setting(NETWORKS[1], "AdamW", method.accepts[-1]))


def main():
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    for name in METHODS:
        second = trial(name)
        second.sparsifier.load(folder / name)
        second.optimizer.load_state_dict(torch.load(folder / name / "optimizer.pt"))
        second.train(STEPS - second.sparsifier.step)
        save_file(second.state(), folder / f"{name}.safetensors")


if __name__ == "__main__":
    main()
