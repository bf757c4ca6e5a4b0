"""From a module with zeros in it to a network that computes in integers and keeps every zero."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from softprune.deploy.calibrate import (
    WAYS,
    Arrays,
    Observed,
    bias_shifts,
    codes_by,
    engine_of,
    layer_errors,
    observe,
    outputs_of,
    relative_error,
)
from softprune.deploy.export.aten import RULES
from softprune.deploy.export.exporting import Accelerated, plain_module, with_suffix, write_spx
from softprune.deploy.export.passes import simplify
from softprune.deploy.export.translate import translate
from softprune.deploy.format.graph import Graph
from softprune.deploy.format.spx import check_built
from softprune.deploy.integers import (
    IntegerPlan,
    integer_graph,
    integer_rows,
    is_layer,
    layer_weights,
    plan_integers,
    widened,
)
from softprune.structure.program import Example, exported

CORRECTED = " with bias correction"
# Layers that a report names because their errors are the largest.
NAMED = 3


@dataclass(frozen=True)
class IntegerLayer:
    """A layer that computes in integers."""

    path: str  # of the module
    scale: float  # of its input, whose byte q stands for (q - zero) * scale
    zero: int
    nonzeros: int  # weights that are not zero in float32
    vanished: int  # of these, those that rounded to zero
    error: float  # squared, relative: what it makes of the float network's values against what the float layer makes


@dataclass(frozen=True)
class QuantizationReport:
    """What became of each layer, and how the ranges were chosen. Print it to read it."""

    layers: tuple[IntegerLayer, ...]
    kept: tuple[str, ...]  # paths of layers in float32
    errors: Mapping[str, float]  # way of choosing ranges -> squared relative error of the outputs on the batches
    ranges: str  # the way that was taken

    @property
    def error(self) -> float:
        """The squared relative error of the outputs on the batches."""
        return self.errors[self.ranges]

    def __str__(self) -> str:
        nonzeros, vanished = (sum(getattr(one, name) for one in self.layers) for name in ("nonzeros", "vanished"))
        others = ", ".join(f"{way} {error:.1e}" for way, error in self.errors.items() if way != self.ranges)
        kept = f", {len(self.kept)} in float32 ({', '.join(self.kept)})" if self.kept else ""
        lines = [
            f"{len(self.layers)} layers in integers{kept}",
            f"error of the outputs {self.error:.1e} (squared, relative), ranges by {self.ranges}; {others}",
            f"{vanished:,} of {nonzeros:,} nonzero weights rounded to zero",
            "",
        ]
        rows = [("layer", "scale", "zero", "nonzeros", "to zero", "error")]
        for one in self.layers:
            counts = f"{one.nonzeros:,}", f"{one.vanished:,}"
            rows.append(
                (one.path or "(the module itself)", f"{one.scale:.4g}", f"{one.zero}", *counts, f"{one.error:.1e}")
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for name, *numbers in rows:
            cells = [f"{text:>{width}}" for text, width in zip(numbers, widths[1:], strict=True)]
            lines.append("  ".join([f"{name:<{widths[0]}}", *cells]))
        worst = sorted(self.layers, key=lambda one: -one.error)[:NAMED]
        names = ", ".join(dict.fromkeys(repr(one.path) for one in worst))
        lines += ["", f"the largest errors are those of {names}: keep=[...] leaves layers in float32"]
        return "\n".join(lines)


class QuantizedModel:
    """A network that computes in integers: call it as the module, or save it for the engine."""

    def __init__(self, graph: Graph, report: QuantizationReport, structure: pytree.TreeSpec) -> None:
        self.graph, self.report = graph, report
        self._structure = structure  # of what the module returns: one tensor, a tuple, a dictionary
        self._inside: Accelerated | None = None

    def __call__(self, *inputs: Tensor) -> Any:
        """What the module returns for float32 inputs on the CPU, computed in integers."""
        if self._inside is None:
            self._inside = Accelerated(engine_of(self.graph), self._structure)
        return self._inside(*inputs)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a ``.spx`` file, from which `softprune.load` makes an engine; replaces one that is there."""
        target = with_suffix(path, ".spx")
        if not target.parent.is_dir():
            raise ValueError(f"there is no folder {target.parent}: make it first")
        write_spx(self.graph, target)
        return target

    def __str__(self) -> str:
        return str(self.report)


def quantize(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    example: Example | None = None,
    keep: Sequence[str] = (),
    ranges: str = "best",
) -> QuantizedModel:
    """Let convolutions and linear layers of a network compute in integers of 8 bits; zeros stay zeros.

    Weights get one scale for each output channel, values between layers one for each tensor, from a few hundred samples
    without labels. What has no integer form, such as softmax and norms that no layer can take in, stays in float32.

    Args:
        model: baked, or any other with zeros in its weights; left as it was.
        batches: some hundred samples as the network will see them: inputs, or tuples that begin with them and may go on
            with labels. All are held in memory.
        example: one input or a tuple of them, float32, as for `export`; the first batch by default. A network with
            several inputs needs it, and takes as many from the front of each batch.
        keep: paths of modules, or patterns such as ``"layer4.*"``, whose layers stay in float32.
        ranges: how large a value may be before it is cut: "minmax" takes the whole range on the batches, "mse" the one
            with the least squared error, "best" whichever moves the network's outputs least. In each case the biases
            are corrected for rounded weights if that helps.

    Returns:
        The network with a report about its layers.

    Raises:
        ValueError: if the model is still managed by a Sparsifier or cannot be exported, there are no batches or they do
            not fit, a value is not finite, a name in ``keep`` is unknown, or nothing is left to quantise.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> small = quantize(net, [torch.randn(64, 4)])
        >>> [op.kind for op in small.graph.ops]
        ['quantize', 'linear_int8', 'linear_int8']
    """
    if ranges not in (*WAYS, "best"):
        raise ValueError(f"ranges is {ranges!r}, must be {', '.join(map(repr, WAYS))} or 'best'")
    model = plain_module(model)
    given, example = _read(batches, example)
    program = exported(model, example)
    graph = simplify(translate(program, RULES))
    _check(given, graph)
    plan = plan_integers(graph, _kept(graph, keep))
    if not plan.layers:
        raise ValueError(
            "there is no convolution or linear layer to quantise" + (" beside those of keep" if keep else "")
        )
    made, report = _best(plan, observe(plan, given), WAYS if ranges == "best" else (ranges,))
    return QuantizedModel(made, report, program.call_spec.out_spec)


def _best(plan: IntegerPlan, seen: Observed, ways: Sequence[str]) -> tuple[Graph, QuantizationReport]:
    """The graph whose outputs are nearest to those of the float network."""
    errors: dict[str, float] = {}
    made = {}
    for way in ways:
        codes = widened(plan, codes_by(plan, seen, way))
        for words, shifts in ((way, {}), (way + CORRECTED, bias_shifts(plan, seen, codes))):
            graph = integer_graph(plan, codes, shifts)
            check_built(graph)
            found = [outputs for _, outputs in outputs_of(graph, seen.parts, f"trying {words}")]
            errors[words], made[words] = relative_error(found, seen.outputs), (graph, codes, shifts)
    best = min(errors, key=lambda words: errors[words])
    graph, codes, shifts = made[best]
    each = layer_errors(plan, seen, codes, shifts)
    layers = []
    for op in (op for op in plan.graph.ops if op.output in plan.layers):
        weight, bias = layer_weights(plan.graph, op)
        code = codes[plan.group[op.inputs[0]]]
        nonzeros = int(np.count_nonzero(weight))
        left = int(np.count_nonzero(integer_rows(weight, bias, code=code, unit=1.0)[0]))
        layers.append(IntegerLayer(op.path, code.scale, code.zero, nonzeros, nonzeros - left, each[op.output]))
    kept = tuple(op.path for op in plan.graph.ops if is_layer(op) and op.output not in plan.layers)
    return graph, QuantizationReport(tuple(layers), kept, errors, best)


# What the caller gave.


def _read(batches: Iterable[Any], example: Example | None) -> tuple[list[Arrays], Example]:
    """The inputs of each batch, and an example of them."""
    if isinstance(batches, Tensor | np.ndarray | Mapping | str) or not isinstance(batches, Iterable):
        raise TypeError(f"batches must be an iterable of batches, got {type(batches).__name__}: put it into a list")
    count = 1 if example is None or isinstance(example, Tensor) else len(example)
    found: list[tuple[Tensor, ...]] = []
    for number, batch in enumerate(batches):
        inputs = tuple(batch[:count]) if isinstance(batch, tuple | list) else (batch,)
        if len(inputs) < count or not all(isinstance(x, Tensor) for x in inputs):
            kinds = ", ".join(type(x).__name__ for x in inputs)
            raise TypeError(f"batch {number} must be {count} tensors, or begin with them, got {kinds or 'nothing'}")
        if any(x.dtype != torch.float32 or x.ndim == 0 for x in inputs):
            raise ValueError(f"batch {number} must be float32 with an axis of samples, got {inputs[0].dtype}")
        bad = sum(int((~torch.isfinite(x)).sum()) for x in inputs)
        if bad:
            raise ValueError(f"batch {number} has {bad} NaN or infinite numbers: give finite ones")
        found.append(tuple(x.detach().cpu().contiguous() for x in inputs))
    if not any(len(inputs[0]) for inputs in found):
        raise ValueError("there are no samples in batches: give some hundred, as the network will see them")
    found = [inputs for inputs in found if len(inputs[0])]
    return [[x.numpy() for x in inputs] for inputs in found], found[0] if example is None else example


def _check(batches: Sequence[Arrays], graph: Graph) -> None:
    """Refuse batches that the graph cannot take."""
    for number, arrays in enumerate(batches):
        for x, (name, shape) in zip(arrays, graph.inputs.items(), strict=True):
            if x.shape[1:] != shape[1:] or len(x) != len(arrays[0]):
                wanted = ", ".join(["batch", *map(str, shape[1:])])
                raise ValueError(f"batch {number}: input {name} must have shape ({wanted}), got {x.shape}")


def _kept(graph: Graph, keep: Sequence[str]) -> set[str]:
    """What the layers make whose paths are named, or lie below a named one, or match a pattern."""
    if isinstance(keep, str):
        raise TypeError(f"keep must be a sequence of paths, got the text {keep!r}: write [{keep!r}]")
    layers = [op for op in graph.ops if is_layer(op)]
    found = set()
    for name in keep:
        mine = {
            op.output
            for op in layers
            if op.path == name or op.path.startswith(f"{name}.") or fnmatchcase(op.path, name)
        }
        if not mine:
            every = list(dict.fromkeys(op.path for op in layers))
            near = get_close_matches(name, every, 3, 0.4) or every[:3]
            raise ValueError(f"keep: no layer is called {name!r} or matches it; near are {', '.join(map(repr, near))}")
        found |= mine
    return found
