"""FastGRNN classifiers to write as C, and the compiler that tries them."""

import subprocess
from pathlib import Path

import pytest
import torch

from softprune.deploy.export.c import CFiles, compile_c
from softprune.deploy.export.c.compiled import c_compiler
from softprune.nn import FastGRNNClassifier

needs_compiler = pytest.mark.skipif(c_compiler() is None, reason="needs a C compiler: cc, gcc, clang or $CC")

# Features, hidden units, classes, steps, and how the network is made.
CASES = {
    "har2": (9, 80, 2, 128, {"rank_w": 9, "rank_u": 8, "gate": "tanh"}),
    "whole": (5, 13, 3, 20, {}),
    "single": (1, 1, 1, 7, {}),
    "one-step": (3, 6, 2, 1, {"rank_u": 2}),
    "learned": (6, 11, 4, 30, {"learned": True, "gate": "quant_sigm", "update": "quant_tanh"}),
    "only-w": (9, 7, 2, 15, {"rank_w": 2, "gate": "quant_sigm4"}),
    "relu": (4, 9, 3, 12, {"rank_w": 2, "rank_u": 3, "update": "relu"}),
    "relu-gate": (4, 5, 2, 6, {"gate": "relu", "update": "sigmoid"}),
    "long": (2, 5, 2, 1000, {"gate": "quant_sigm", "update": "tanh"}),
}


def classifier(case: str) -> tuple[FastGRNNClassifier, torch.Tensor]:
    """The network of a case, with values that are not those it starts with, and 40 windows."""
    features, hidden, classes, steps, options = CASES[case]
    model = FastGRNNClassifier(features, hidden, classes=classes, **options)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
        for layer in (model.rnn.cell.w, model.rnn.cell.u):
            if options.get("learned"):
                layer.m[::2] = 0
    return model.eval(), torch.randn(40, steps, features)


def normalisation(kind: str, windows: torch.Tensor):
    """None, or mean and deviation for all steps alike or for each."""
    shape = {"none": None, "features": windows.shape[2:], "steps": windows.shape[1:]}[kind]
    return None if shape is None else (3 * torch.randn(shape), 0.5 + 4 * torch.rand(shape))


def checked(files: CFiles, folder: Path, *flags: str) -> subprocess.CompletedProcess:
    """What the program that checks the source says."""
    program = compile_c([files.source, files.main], folder / "check", *flags)
    return subprocess.run([program], capture_output=True, text=True, check=False)
