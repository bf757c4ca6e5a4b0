"""One case of fuzzing: load a file, run it, run it in other ways, compare."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from spx_compare import reference

from softprune.deploy.engine.execution import Executable
from softprune.deploy.engine.inference import Engine, load
from softprune.deploy.engine.library import library
from softprune.deploy.engine.planner import build
from softprune.deploy.engine.tune import BANDS
from softprune.deploy.format import spatial
from softprune.deploy.format.graph import Graph
from softprune.deploy.format.operations import infer
from softprune.deploy.format.value_kinds import BYTE, EITHER, INTEGER, infer_kinds

BATCH = 2
# Numbers of all values together, above which a file that was loaded is not run: it would only take long.
MAX_FLOATS = 1 << 19
# Cases that run are also given to the reference engine, one in so many.
COMPARED = 8
# What a file may be refused with; anything else is a fault of ours.
REFUSALS = (ValueError, OSError, MemoryError)
Array = NDArray[np.float32]
Arrays = list[Array]


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
        if sum(math.prod(shape) for shape in shapes.values()) > MAX_FLOATS:
            return "too large"
        noise = np.random.default_rng(dice.randrange(1 << 30))
        inputs = [noise.standard_normal(shapes[name]).astype(np.float32) for name in engine.model.graph.inputs]
    except REFUSALS:
        return "stopped"
    integer = any(op.kind in INTEGER for op in engine.model.graph.ops)
    try:
        found = engine(*inputs)
    except REFUSALS as error:
        if integer:
            raise DifferenceError(f"the engine stops at what it has loaded: {error}") from error
        return "stopped"
    outputs = list(found) if isinstance(found, tuple) else [found]
    again = by_chance(engine, inputs, outputs, dice) if engine.team is not None else outputs
    if integer:
        exact = exact_outputs(engine.model.graph, infer_kinds(engine.model.graph, engine.model.weights))
        compare_bytes("other choices", again, outputs, exact)
        compare_bytes("the reference", reference(engine, inputs), outputs, exact)
        return "run"
    _compare("other choices", again, outputs)
    if dice.randrange(COMPARED) == 0:
        _compare("the reference", reference(engine, inputs), outputs)
        compare_finite(engine, inputs, {"the engine": outputs, "other choices": again})
    return "run"


# Operations that give the same bits whatever the order of their sums, where their inputs do.
EXACT = {*INTEGER, *EITHER, "pad"}


def exact_outputs(graph: Graph, kinds: Mapping[str, str]) -> list[bool] | None:
    """Whether each output is the same bit for bit however it is computed.

    None if bytes are made of numbers that are not: then one in the last place may become a step, and that anything.
    """
    exact = set(graph.inputs)
    for op in graph.ops:
        # A maximum over NaN is anything.
        fits = op.kind in EXACT and (op.kind != "max_pool2d" or kinds[op.output] == BYTE)
        if fits and exact >= set(op.reads):
            exact.add(op.output)
        elif op.kind == "quantize":
            return None
    return [name in exact for name in graph.outputs]


def compare_bytes(what: str, found: Arrays, wanted: Arrays, exact: list[bool] | None) -> None:
    """Outputs of a network of bytes: equal where they are exact, otherwise as near as those of numbers."""
    for f, w, equal in zip(found, wanted, exact or [False] * len(wanted), strict=True):
        if equal and not np.array_equal(f, w, equal_nan=True):
            at = tuple(int(i) for i in np.argwhere((f != w) & ~(np.isnan(f) & np.isnan(w)))[0])
            raise DifferenceError(f"{what}: {f[at]!r} at {at}, not {w[at]!r}")
        if not equal and exact is not None:
            _compare(what, [f], [w])
        elif f.shape != w.shape:
            raise DifferenceError(f"{what}: shape {f.shape}, not {w.shape}")


class _OrderError(Exception):
    """A sum that overflows or not, depending on its order."""


def _without_zeros(weight: Array, values: Array) -> Array:
    """The product of two matrices in which zero times anything is zero."""
    sizes = [np.where(np.isfinite(part), np.abs(part), 0).astype(np.float64) for part in (weight, values)]
    if (sizes[0] @ sizes[1]).max(initial=0.0) > np.finfo(np.float32).max:
        raise _OrderError
    if np.isfinite(weight).all() and np.isfinite(values).all():
        return weight @ values
    out = np.zeros((*np.broadcast_shapes(weight.shape[:-2], values.shape[:-2]), weight.shape[-2], values.shape[-1]))
    for k in range(weight.shape[-1]):
        a, b = weight[..., :, k, None], values[..., k, None, :]
        out += np.where((a == 0) | (b == 0), 0, a * b)
    return out.astype(np.float32)


def compare_finite(engine: Engine, inputs: Arrays, results: dict[str, Arrays]) -> str:
    """Which numbers are finite must be sure, except where it depends on a zero times an infinity or NaN.

    The sparse kernels skip weights that are zero and the dense ones do not, and some multiply with padding where others
    leave it out. So NaN and infinities must be in all places where they are without any such product, and in none where
    they are not with all of them. Where the sizes of the terms of a sum add up to more than the largest number, it
    overflows or not by its order, and nothing is sure.

    Returns:
        "the same" as in the reference with all products, "between" both, or "by order".

    Raises:
        DifferenceError: if one of the results is outside.
    """
    most = reference(engine, inputs)
    try:
        with mock.patch.object(spatial, "product", _without_zeros):
            fewest = reference(engine, inputs)
    except _OrderError:
        return "by order"
    # The reference pads no input of a transposed convolution, the kernels do.
    kernels = [op.fields["weight"] for op in engine.model.graph.ops if op.kind == "conv_transpose2d"]
    padded = any(not np.isfinite(engine.model.weights[name].dense()).all() for name in kernels)
    same = True
    for what, outputs in results.items():
        for f, m, w in zip(outputs, most, fewest, strict=True):
            same &= bool((np.isfinite(f) == np.isfinite(m)).all())
            wrong = (np.isfinite(f) & ~np.isfinite(w)) | (~np.isfinite(f) & np.isfinite(m) & (not padded))
            if wrong.any():
                at = tuple(int(i) for i in np.argwhere(wrong)[0])
                raise DifferenceError(f"{what}: {f[at]} at {at}, the reference says {m[at]}, and {w[at]} without zeros")
    return "the same" if same else "between"


def by_chance(engine: Engine, inputs: Arrays, outputs: Arrays, dice: random.Random) -> Arrays:
    """The outputs with kernels, tiles and bands as tuning might have chosen them."""
    kernels, team = library(), engine.team
    assert kernels is not None and team is not None
    builder = build(engine.model, kernels, batch=BATCH, threads=engine.threads)  # owns the buffers
    program = builder.program
    for step in program.steps:
        if step.kernel is not None:
            step.choose(dice.choice(step.kernel.choices()))
    program.bands = {chain.start: dice.choice(BANDS) for chain in program.chains if dice.random() < 0.7}
    again: Arrays = [np.full_like(y, 9.0) for y in outputs]
    Executable(kernels, team, program).run([a.ctypes.data for a in (*inputs, *again)])
    return again


def _compare(what: str, found: Arrays, wanted: Arrays) -> None:
    """Shapes must agree, and numbers where all are finite; see below for where they are not."""
    for f, w in zip(found, wanted, strict=True):
        if f.shape != w.shape:
            raise DifferenceError(f"{what}: shape {f.shape}, not {w.shape}")
        if w.size and np.isfinite(f).all() and np.isfinite(w).all() and np.abs(w).max() < 1e18:
            share = np.abs(f - w).max() / max(1.0, float(np.abs(w).max()))
            if not share < 1e-3:
                raise DifferenceError(f"{what}: differs by {share:.3g} of the largest number")
