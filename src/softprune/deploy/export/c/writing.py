"""export_c: from a FastGRNN classifier to the three files of a program in C99."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from softprune.deploy.export.c.float_network import (
    Floats,
    Normaliser,
    plain_classifier,
    read_network,
    read_normalisation,
)
from softprune.deploy.export.c.integer_network import quantised
from softprune.deploy.export.c.programs import (
    CArray,
    check_identifier,
    definitions,
    filled,
    float_literal,
    float_program,
    integer_program,
)
from softprune.nn import FastGRNNClassifier


@dataclass(frozen=True)
class CFiles:
    """A C program on the disk."""

    header: Path  # with the functions and the type of a state
    source: Path  # everything the program needs
    main: Path  # a program that checks it with one window
    constant_bytes: int  # of all constant arrays
    state_bytes: int  # of a state, the working memory
    shape: tuple[int, int]  # steps and features of a window
    classes: int  # how many scores there are
    int8: bool  # whether scores are integers

    def __str__(self) -> str:
        return (
            f"{self.constant_bytes:,} bytes of constants, {self.state_bytes:,} bytes of state; check with: "
            f"cc -std=c99 -O2 {self.source} {self.main} -lm && ./a.out"
        )


def write_together(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files by their names, none ever half there; a new folder appears with all, an old one keeps others."""
    if folder.is_file():
        raise ValueError(f"{folder} is a file: name a folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for name, text in texts.items():
            with (scratch / name).open("w", encoding="ascii", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        if not folder.exists():
            scratch.chmod(0o755)
            scratch.rename(folder)
        else:
            for name in texts:
                (scratch / name).replace(folder / name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return [folder / name for name in texts]


# How far a score may be from PyTorch's, relative to the largest one or to 1: float32 rounds in another order.
TOLERANCE = 2e-5


def export_c(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    example: Tensor,
    int8: bool = False,
    name: str = "fastgrnn",
    normalisation: tuple[ArrayLike, ArrayLike] | None = None,
) -> CFiles:
    """Write a FastGRNN classifier as C99 source without dependencies, with a program that checks it.

    ``NAME.h`` and ``NAME.c`` use no memory but the state that the caller gives them; ``NAME_main.c`` runs the first
    example window and returns 1 if a score is not what it should be. The same model gives the same bytes.

    Args:
        model: a baked `FastGRNNClassifier` of any rank; left as it is.
        folder: for the three files; made if it is not there.
        example: windows [n, steps, features], float32, as the model takes them. The first is the one that is checked.
            With ``int8`` the ranges of integers are measured on all of them: take some hundred of training data.
        int8: weights of 8 bits and integer arithmetic.
        name: what the files and all their names begin with.
        normalisation: mean and deviation of the features, [features] or [steps, features] each: then the program takes
            raw values and normalises them itself.

    Returns:
        The files and the memory that they need.

    Raises:
        ValueError: if the model is managed, parametrized, not a FastGRNN classifier or not finite, if the name is not a
            C identifier, or if the example or the normalisation does not fit; nothing is written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = export_c(FastGRNNClassifier(9, 8, classes=2), f"{folder}/c", example=torch.zeros(1, 16, 9))
        ...     files.source.name, files.constant_bytes, files.state_bytes
        ('fastgrnn.c', 680, 64)
    """
    check_identifier(name)
    classifier = plain_classifier(model)
    network = read_network(classifier)
    windows = _checked(example, network.features)
    steps = windows.shape[1]
    found = read_normalisation(normalisation, steps=steps, features=network.features)
    raw = windows.numpy() if found is None else found.undone(windows.numpy())
    scores = _scores(classifier, raw[:1], found)
    if int8:
        integers = quantised(classifier, windows, normaliser=found)
        program = integer_program(network, integers, name, steps=steps)
        golden = [CArray("expected", integers.scores(raw[:1]), "int32_t"), CArray("in_float", scores)]
    else:
        program = float_program(network, name, steps=steps, normaliser=found)
        golden = [CArray("expected", scores)]
    marks = {
        "name": name,
        "NAME": name.upper(),
        "ARRAYS": definitions([CArray("window", raw[0]), *golden]),
        "TOLERANCE": float_literal(TOLERANCE * max(1.0, float(np.abs(scores).max()))),
    }
    main = filled("integer_main.c" if int8 else "float_main.c", marks)
    texts = {f"{name}.h": program.header, f"{name}.c": program.source, f"{name}_main.c": main}
    header, source, checker = write_together(Path(folder), texts)
    shape = (steps, network.features)
    return CFiles(
        header, source, checker, program.constant_bytes, program.state_bytes, shape, classes=network.classes, int8=int8
    )


def _checked(example: Tensor, features: int) -> Tensor:
    if not isinstance(example, Tensor) or example.dtype != torch.float32 or example.ndim != 3:
        found = f"{example.dtype} {tuple(example.shape)}" if isinstance(example, Tensor) else type(example).__name__
        raise ValueError(f"the example must be float32 windows [n, steps, features]; got {found}")
    if 0 in example.shape or example.shape[2] != features:
        raise ValueError(
            f"the example has shape {tuple(example.shape)}; the model takes at least one window [1, steps, {features}]"
        )
    if not torch.isfinite(example).all():
        raise ValueError("the example has values that are not finite")
    return example.detach().cpu().contiguous()


@torch.no_grad()
def _scores(classifier: FastGRNNClassifier, raw: Floats, normaliser: Normaliser | None) -> Floats:
    """What PyTorch gives for the values that the program computes with, in double precision."""
    values = raw if normaliser is None else normaliser(raw)
    single = classifier(torch.from_numpy(values))
    scores = classifier.double()(torch.from_numpy(values).double()).float().numpy()
    classifier.float()
    if not np.isfinite(scores).all() or not torch.isfinite(single).all():
        raise ValueError("the scores of the example are not finite: its values or the weights are too large")
    return scores
