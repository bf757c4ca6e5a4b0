"""What the values of a network are on a few batches, and the codes of bytes that lose least of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from softprune.deploy.engine.inference import Engine, load
from softprune.deploy.export.exporting import write_spx
from softprune.deploy.format.graph import Array, Graph, Op, Weight
from softprune.deploy.format.operations import splits
from softprune.deploy.integers import Affine, IntegerPlan, computed, graph_beside, integer_rows, layer_weights

Arrays = list[Array]
Wide = NDArray[np.float64]
# Bins on each side of zero: eight for every step of a byte, or more.
BINS = 4096
# Values whose largest element is below this count as zeros.
LEAST_REACH = 1e-25
# Elements of a value that are counted in one call.
SAMPLE = 1 << 20
# Floats that a call may give back: those of a whole batch can be more than the memory holds.
MOST_FLOATS = 1 << 26
# How far a range is cut, in parts of the whole one.
CUTS = np.linspace(1.0, 0.1, 91)
WAYS = ("minmax", "mse")


def engine_of(graph: Graph) -> Engine:
    """An engine that runs the graph."""
    with TemporaryDirectory(prefix="softprune-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "model.spx"
        write_spx(graph, path)
        # The engine maps the file; a mapped file may lose its name.
        return load(path, tune=False)


def outputs_of(graph: Graph, parts: Sequence[Arrays], words: str) -> Iterator[tuple[Arrays, Arrays]]:
    """Inputs and outputs of the graph, part by part; a terminal sees how far it is."""
    console, engine = Console(stderr=True), engine_of(graph)
    for inputs in track(parts, words, console=console, transient=True, disable=not console.is_terminal):
        found = engine(*inputs)
        yield inputs, list(found) if isinstance(found, tuple) else [found]


def divided(graph: Graph, batches: Sequence[Arrays]) -> list[Arrays]:
    """The batches, in parts where all that the graph gives back would be too much."""
    sizes = [[size for size in graph.shapes[name] if isinstance(size, int)] for name in graph.outputs]
    most = max(1, MOST_FLOATS // max(1, int(sum(np.prod(size, dtype=np.int64) for size in sizes))))
    weights = {name: Weight(array.shape, array) for name, array in graph.weights.items()}
    if not splits(graph, weights):
        return list(batches)
    return [[x[first : first + most] for x in batch] for batch in batches for first in range(0, len(batch[0]), most)]


class Tally:
    """The range of a value and how often it is how large; exact zeros, which bytes hold exactly, are not counted."""

    def __init__(self) -> None:
        self.low = self.high = 0.0
        self.width = 0.0
        self.counts = np.zeros(2 * BINS, np.int64)
        self._random = np.random.default_rng(0)

    def add(self, x: Array) -> None:
        low, high = float(x.min(initial=0)), float(x.max(initial=0))
        self.low, self.high = min(self.low, low), max(self.high, high)
        reach = max(-low, high)
        if reach < LEAST_REACH:
            return
        if self.width == 0:
            self.width = reach / (BINS - 1)
        while reach >= self.width * (BINS - 1):
            joined = self.counts.reshape(-1, 2).sum(1)
            self.counts = np.pad(joined, BINS // 2)
            self.width *= 2
        flat = x.reshape(-1)
        if flat.size > SAMPLE:
            flat = flat[self._random.integers(0, flat.size, SAMPLE)]
        places = np.floor(flat[flat != 0] / np.float32(self.width)).astype(np.int32) + BINS
        self.counts += np.bincount(places, minlength=2 * BINS)

    def histogram(self) -> tuple[Wide, Wide]:
        """The middles of the bins that are not empty, and their counts."""
        kept = np.flatnonzero(self.counts)
        return np.clip((kept - BINS + 0.5) * self.width, self.low, self.high), self.counts[kept].astype(np.float64)


@dataclass
class Means:
    """The mean over all samples of what a layer reads."""

    total: Wide | None = None
    count: int = 0

    def add(self, x: Array, op: Op) -> None:
        """Of images the mean image, of rows the mean row."""
        rows = x if op.kind == "conv2d" else x.reshape(-1, x.shape[-1])
        found = rows.sum(0, dtype=np.float64)
        self.total = found if self.total is None else self.total + found
        self.count += len(rows)

    def at_weights(self, op: Op, weight: NDArray[Any]) -> Wide:
        """(groups, inputs of a group * places in the kernel): the mean of what each weight is multiplied with."""
        assert self.total is not None
        mean = self.total / max(1, self.count)
        if op.kind == "linear":
            return mean[None]
        (ph, pw), (sh, sw), (dh, dw) = (op.fields[key] for key in ("padding", "stride", "dilation"))
        image = np.pad(mean, ((0, 0), (ph, ph), (pw, pw)))
        kh, kw = weight.shape[2:]
        rows = (image.shape[1] - dh * (kh - 1) - 1) // sh + 1
        columns = (image.shape[2] - dw * (kw - 1) - 1) // sw + 1
        seen = np.empty((len(image), kh, kw))
        for i in range(kh):
            for j in range(kw):
                down = slice(i * dh, i * dh + sh * (rows - 1) + 1, sh)
                across = slice(j * dw, j * dw + sw * (columns - 1) + 1, sw)
                seen[:, i, j] = image[:, down, across].mean((1, 2))
        return seen.reshape(op.fields["groups"], -1)


@dataclass
class Observed:
    """What calibration has seen."""

    parts: list[Arrays]  # the batches as they were run
    outputs: list[Arrays] = field(default_factory=list)  # of the float network for each of them
    tallies: dict[str, Tally] = field(default_factory=dict)  # of values that decide a scale
    means: dict[str, Means] = field(default_factory=dict)  # by what the layer makes


def observe(plan: IntegerPlan, batches: Sequence[Arrays]) -> Observed:
    """Run the float network on all batches."""
    graph = plan.graph
    layers = [op for op in graph.ops if op.output in plan.layers]
    sources = {name for names in plan.sources().values() for name in names}
    watched = sorted(sources | {op.inputs[0] for op in layers})
    extra = [name for name in watched if name not in graph.inputs and name not in graph.outputs]
    wide = replace(graph, outputs=[*graph.outputs, *extra])
    seen = Observed(divided(wide, batches))
    seen.tallies = {name: Tally() for name in watched if name in sources}
    seen.means = {op.output: Means() for op in layers}
    for inputs, outputs in outputs_of(wide, seen.parts, "calibrating"):
        values = dict(zip((*graph.inputs, *wide.outputs), (*inputs, *outputs), strict=True))
        for op in graph.ops:
            if op.output in values and not np.isfinite(values[op.output]).all():
                raise ValueError(f"what {op} makes is not finite on the batches, and bytes can hold no such value")
        seen.outputs.append(outputs[: len(graph.outputs)])
        for name, tally in seen.tallies.items():
            tally.add(values[name])
        for op in layers:
            seen.means[op.output].add(values[op.inputs[0]], op)
    return seen


def codes_by(plan: IntegerPlan, seen: Observed, way: str) -> dict[str, Affine]:
    """A code for each group of values: of the whole range, or of the range with the least squared error."""
    readers = plan.graph.users()
    found = {}
    for group, names in plan.sources().items():
        tallies = [seen.tallies[name] for name in names]
        low, high = min(t.low for t in tallies), max(t.high for t in tallies)
        parts = [t.histogram() for t in tallies]
        x, count = (np.concatenate(side) for side in zip(*parts, strict=True))
        read = readers.get(group, [])
        # What only a lookup reads is as good as what the lookup makes of it.
        table = read[0] if len(read) == 1 and read[0].output in plan.tables and group in plan.bytes else None
        found[group] = _best(low, high, x, count, table, cuts=CUTS if way == "mse" else CUTS[:1])
    return found


def _best(low: float, high: float, x: Wide, count: Wide, table: Op | None, *, cuts: Wide) -> Affine:
    def made(values: NDArray[Any]) -> NDArray[Any]:
        return values if table is None else computed(table.kind, values.astype(np.float32), table.fields)

    wanted = made(x)

    def error(code: Affine) -> float:
        steps = np.clip(np.rint(x / code.scale), -code.zero, 255 - code.zero)
        return float(np.dot(count, np.square(made(steps * code.scale) - wanted)))

    if max(-low, high) < LEAST_REACH:
        return Affine(1.0, 0)
    if low == 0:
        return min((_code(0.0, high * cut) for cut in cuts), key=error)
    candidates = [_symmetric(max(-low, high) * cut) for cut in cuts]
    best = min(candidates, key=error)
    # Both ends move together, then each alone.
    ends = min(((low * cut, high * cut) for cut in cuts), key=lambda ends: error(_code(*ends)))
    ends = min(((ends[0] * cut, ends[1]) for cut in cuts), key=lambda ends: error(_code(*ends)))
    ends = min(((ends[0], ends[1] * cut) for cut in cuts), key=lambda ends: error(_code(*ends)))
    return min((best, _code(*ends)), key=error)


def _symmetric(reach: float) -> Affine:
    return Affine(_scale(reach / 127), 128)


def _code(low: float, high: float) -> Affine:
    scale = _scale((high - low) / 255)
    return Affine(scale, min(255, max(0, round(-low / scale))))


def _scale(value: float) -> float:
    return float(np.float32(max(value, LEAST_REACH)))


def bias_shifts(plan: IntegerPlan, seen: Observed, codes: Mapping[str, Affine]) -> dict[str, Wide]:
    """What to add to the bias of each layer, so that rounding its weights does not move the mean of its sums."""
    found = {}
    for op in plan.graph.ops:
        if op.output not in plan.layers:
            continue
        weight, bias = layer_weights(plan.graph, op)
        code = codes[plan.group[op.inputs[0]]]
        quantised, _, factor = integer_rows(weight, bias, code=code, unit=1.0)
        steps = factor.astype(np.float64) / code.scale
        change = weight.reshape(len(weight), -1) - quantised.reshape(len(weight), -1) * steps[:, None]
        mean = seen.means[op.output].at_weights(op, weight)
        found[op.output] = np.einsum("goi,gi->go", change.reshape(len(mean), -1, change.shape[1]), mean).reshape(-1)
    return found


def layer_errors(
    plan: IntegerPlan, seen: Observed, codes: Mapping[str, Affine], shifts: Mapping[str, Wide]
) -> dict[str, float]:
    """By what each layer makes: the squared relative error of its integer form on values of the float network."""
    graph, layers = graph_beside(plan, codes, shifts)
    off, size = np.zeros(len(layers)), np.zeros(len(layers))
    for _, outputs in outputs_of(graph, divided(graph, seen.parts), "comparing layers"):
        for place in range(len(layers)):
            wanted, found = outputs[2 * place : 2 * place + 2]
            off[place] += _squares(found - wanted)
            size[place] += _squares(wanted)
    return {name: float(o / s) if s else float(o > 0) for name, o, s in zip(layers, off, size, strict=True)}


def _squares(x: Array) -> float:
    return float(np.square(x, dtype=np.float64).sum())


def relative_error(found: Sequence[Arrays], wanted: Sequence[Arrays]) -> float:
    """The squared error over the square of what is wanted, in the mean of the outputs."""
    each = []
    for output in range(len(wanted[0])):
        off = sum(_squares(f[output] - w[output]) for f, w in zip(found, wanted, strict=True))
        size = sum(_squares(w[output]) for w in wanted)
        each.append(off / size if size else float(off > 0))
    return float(np.mean(each))
