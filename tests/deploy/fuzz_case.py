"""One case of fuzzing: load a file, run it, run it in other ways, compare."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from spx_compare import reference

from softprune.deploy.runtime.engine import Engine, load
from softprune.deploy.runtime.library import library
from softprune.deploy.runtime.planner import build
from softprune.deploy.runtime.program import Plan
from softprune.deploy.runtime.shape import infer
from softprune.deploy.runtime.tensorfile import product
from softprune.deploy.runtime.tune import BANDS

BATCH = 2
# Numbers of all values together, above which a file that was loaded is not run: it would only take long.
MAX_FLOATS = 1 << 19
# Cases that run are also given to the reference engine, one in so many.
COMPARED = 8
# What a file may be refused with; anything else is a fault of ours.
REFUSALS = (ValueError, OSError, MemoryError)
Arrays = list[NDArray[np.float32]]


class DifferenceError(Exception):
    """Two ways to compute one file do not agree."""


def try_file(path: Path, dice: random.Random) -> str:
    """How far a file comes: "refused" while it is loaded, "too large", "stopped" before its first step, or "run".

    Raises:
        DifferenceError: if the engine, with its kernels chosen at random, or the reference say something else.
    """
    try:
        engine = load(path, threads=dice.randint(1, 2), tune=False)
    except REFUSALS:
        return "refused"
    try:
        shapes = infer(engine.model.graph, engine.model.weights, BATCH)
        if sum(product(shape) for shape in shapes.values()) > MAX_FLOATS:
            return "too large"
        noise = np.random.default_rng(dice.randrange(1 << 30))
        inputs = [noise.standard_normal(shapes[name]).astype(np.float32) for name in engine.model.graph.inputs]
        found = engine(*inputs)
    except REFUSALS:
        return "stopped"
    outputs = list(found) if isinstance(found, tuple) else [found]
    if engine.team is not None:
        _compare("other choices", _by_chance(engine, inputs, outputs, dice), outputs)
    if dice.randrange(COMPARED) == 0:
        _compare("the reference", reference(engine, inputs), outputs)
    return "run"


def _by_chance(engine: Engine, inputs: Arrays, outputs: Arrays, dice: random.Random) -> Arrays:
    """The outputs with kernels, tiles and bands as tuning might have chosen them."""
    kernels, team = library(), engine.team
    assert kernels is not None and team is not None
    builder = build(engine.model, kernels, batch=BATCH, threads=engine.threads)  # owns the buffers
    program = builder.program
    for step in program.steps:
        if step.site is not None:
            step.choose(dice.choice(step.site.choices()))
    program.bands = {chain.start: dice.choice(BANDS) for chain in program.chains if dice.random() < 0.7}
    again: Arrays = [np.full_like(y, 9.0) for y in outputs]
    Plan(kernels, team, program).run([a.ctypes.data for a in (*inputs, *again)])
    return again


def _compare(what: str, found: Arrays, wanted: Arrays) -> None:
    """Numbers must agree; shapes alone where there are infinities, since a zero times one is skipped or no number."""
    for f, w in zip(found, wanted, strict=True):
        if f.shape != w.shape:
            raise DifferenceError(f"{what}: shape {f.shape}, not {w.shape}")
        if w.size and np.isfinite(f).all() and np.isfinite(w).all() and np.abs(w).max() < 1e18:
            share = np.abs(f - w).max() / max(1.0, float(np.abs(w).max()))
            if not share < 1e-3:
                raise DifferenceError(f"{what}: differs by {share:.3g} of the largest number")
