"""Which layers of a graph compute in integers, which values are bytes for that, and the graph that comes of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.export.passes import drop_unused, rename_weights
from softprune.deploy.format.compute import OpCall
from softprune.deploy.format.graph import Array, Graph, Op
from softprune.deploy.format.operations import FUSED, OPERATIONS
from softprune.deploy.format.value_kinds import EITHER, LARGEST_STEPS, LARGEST_WEIGHT

LAYERS = {"conv2d": "conv2d_int8", "linear": "linear_int8"}
# Activations that an integer layer applies by the bounds of its bytes.
CUT = (None, "relu", "relu6")
# Functions of one element, which a table of 256 bytes holds whole; sums and products with a number are others.
_ELEMENTWISE = {*FUSED, "gelu", "hardsigmoid", "elu", "softplus"}
# Half of what the format allows, so that rounding a row's weights never leads beyond it.
LARGEST_SUM = 1 << 30


@dataclass(frozen=True)
class Affine:
    """What bytes stand for: a byte q for (q - zero) * scale."""

    scale: float
    zero: int

    def bytes_of(self, x: NDArray[Any]) -> NDArray[np.uint8]:
        return computed("quantize", x, self.fields)

    def values_of(self, q: NDArray[np.uint8]) -> Array:
        return computed("dequantize", q, self.fields)

    @property
    def fields(self) -> dict[str, Any]:
        return {"scale": self.scale, "zero": self.zero}


def computed(kind: str, x: NDArray[Any], fields: Mapping[str, Any]) -> NDArray[Any]:
    """What an operation on elements makes of an array."""
    return OPERATIONS[kind].compute(OpCall(fields, (x,), None, {}, 1))


@dataclass(frozen=True)
class IntegerPlan:
    """A float graph and what of it becomes integer."""

    graph: Graph  # activations that no integer layer can apply are operations of their own
    layers: frozenset[str]  # what integer layers make
    tables: frozenset[str]  # what lookups make
    bytes: frozenset[str]  # values that are made as bytes
    group: Mapping[str, str]  # each value that is read as bytes -> the name of those that share a scale with it

    def sources(self) -> dict[str, list[str]]:
        """For each group the values that decide its scale: those that are not only moved in it."""
        moved = {op.output for op in self.graph.ops if op.kind in EITHER and op.output in self.bytes}
        found: dict[str, list[str]] = {}
        for name, group in self.group.items():
            if name not in moved:
                found.setdefault(group, []).append(name)
        return found


def is_layer(op: Op) -> bool:
    return op.kind in LAYERS


def _is_elementwise(op: Op) -> bool:
    return op.kind in _ELEMENTWISE or (op.kind in ("add", "mul") and len(op.inputs) == 1)


def plan_integers(graph: Graph, kept: Collection[str]) -> IntegerPlan:
    """Choose what becomes integer: layers, but for those whose output is in ``kept``, and what moves bytes.

    A layer makes bytes where another integer layer reads them, also behind moves and activations, or a mean over all
    pixels alone, since bytes are summed exactly; where other float operations read its output, or the network gives it
    back, it makes float32.
    """
    layers = {op.output for op in graph.ops if is_layer(op) and op.output not in kept}
    as_bytes, as_floats, summed = _wanted(graph, layers)
    made: set[str] = set()
    for op in graph.ops:
        wanted, either = op.output in as_bytes, op.output in summed
        inside = [name in made for name in op.inputs]
        if op.output in layers:
            becomes = (wanted or either) and op.output not in graph.outputs
        elif op.kind in EITHER:
            mixed = wanted and (any(inside) or op.output not in as_floats)
            becomes = mixed or (all(inside) and (either or op.kind != "concat"))
        else:
            becomes = (wanted or either) and _is_elementwise(op) and all(inside)
        if becomes:
            made.add(op.output)
    tables = {op.output for op in graph.ops if op.output in made and op.output not in layers and op.kind not in EITHER}
    plan = _split(graph, layers, tables, made)
    return IntegerPlan(plan, frozenset(layers), frozenset(tables), frozenset(made), _groups(plan, layers, tables, made))


def _wanted(graph: Graph, layers: Collection[str]) -> tuple[set[str], set[str], set[str]]:
    """The values that somebody reads as bytes, those that somebody reads as floats, and those that are only summed."""
    as_bytes: set[str] = set()
    as_floats = set(graph.outputs)
    summed: set[str] = set()
    users = graph.users()
    for op in reversed(graph.ops):
        if op.output in layers:
            as_bytes.add(op.inputs[0])
            # A residual is added to what the layer makes and is of its kind.
            bytes_out = op.output in as_bytes | (summed - as_floats) and op.output not in graph.outputs
            (as_bytes if bytes_out else as_floats).update(op.reads[1:])
        elif op.kind in EITHER or _is_elementwise(op):
            for wanted in (as_bytes, as_floats, summed):
                wanted.update(op.inputs if op.output in wanted else ())
        elif _is_mean_of_pixels(graph, op) and len(users[op.inputs[0]]) == 1:
            summed.update(op.inputs)
        else:
            as_floats.update(op.reads)
    return as_bytes, as_floats, summed - as_bytes - as_floats


def _is_mean_of_pixels(graph: Graph, op: Op) -> bool:
    if op.kind == "mean":
        return len(graph.shapes[op.inputs[0]]) == 4 and sorted(axis % 4 for axis in op.fields["axes"]) == [2, 3]
    return op.kind == "adaptive_avg_pool2d" and list(op.fields["size"]) == [1, 1]


def _split(graph: Graph, layers: set[str], tables: set[str], made: set[str]) -> Graph:
    """A copy in which integer layers have no activation but those that they apply themselves; extends the sets."""
    ops = []
    shapes = dict(graph.shapes)
    for old in graph.ops:
        op = Op(old.kind, old.path, list(old.inputs), old.output, dict(old.fields))
        ops.append(op)
        activation = op.fields.get("activation")
        if op.output not in layers or activation in (CUT if op.output in made else (None,)):
            continue
        op.output = f"{old.output}.sums"
        op.fields["activation"] = None
        shapes[op.output] = shapes[old.output]
        fields = {"approximate": "none"} if activation == "gelu" else {}
        ops.append(Op(str(activation), op.path, [op.output], old.output, fields))
        layers.remove(old.output)
        layers.add(op.output)
        if old.output in made:
            tables.add(old.output)
            made.add(op.output)
    return Graph(dict(graph.inputs), list(graph.outputs), ops, dict(graph.weights), shapes)


def _groups(graph: Graph, layers: set[str], tables: set[str], made: set[str]) -> dict[str, str]:
    """Each value that is read or made as bytes, with the first of those that share its scale."""
    leads: dict[str, str] = {}

    def lead(name: str) -> str:
        leads.setdefault(name, name)
        while leads[name] != name:
            name = leads[name]
        return name

    for op in graph.ops:
        if op.output in layers:
            lead(op.inputs[0])
        if op.output not in made:
            continue
        lead(op.output)
        residual = op.fields.get("residual")
        if residual is not None:
            lead(residual)
        if op.output not in layers and op.output not in tables:
            for name in op.inputs:
                leads[lead(op.output)] = lead(name)
    return {name: lead(name) for name in leads}


def integer_rows(
    weight: NDArray[Any], bias: NDArray[Any], *, code: Affine, unit: float
) -> tuple[NDArray[np.int8], NDArray[np.int32], Array]:
    """The weights, biases and factors of a layer that reads bytes of a code; its sums times the factors are in units.

    A row's step is its largest weight over 127. It is longer where the row's bias would leave the range of the sums:
    in a row without weights, or with such small ones that they do not count beside the bias.
    """
    rows = weight.reshape(len(weight), -1).astype(np.float64)
    largest = np.abs(bias) + np.abs(rows).sum(1) * max(code.zero, 255 - code.zero) * code.scale
    step = np.maximum(np.abs(rows).max(1, initial=0) / LARGEST_WEIGHT * code.scale, largest / LARGEST_SUM)
    # Zeros of whatever factor are zeros; what is below 1e-27 of a unit counts as such.
    factor = np.where(step > unit * 1e-27, step / unit, 1.0).astype(np.float32)
    step = factor.astype(np.float64) * unit
    quantised = np.clip(np.rint(rows * code.scale / step[:, None]), -LARGEST_WEIGHT, LARGEST_WEIGHT).astype(np.int8)
    return quantised.reshape(weight.shape), np.rint(bias / step).astype(np.int32), factor


def widened(plan: IntegerPlan, codes: Mapping[str, Affine]) -> dict[str, Affine]:
    """The codes by group, with scales so large that no sum of a layer has more steps of its output than allowed.

    This only concerns outputs that hardly ever left zero on the batches.
    """
    found = dict(codes)
    for _ in range(8):
        before = dict(found)
        for op in plan.graph.ops:
            if op.output not in plan.layers or op.output not in plan.bytes:
                continue
            weight, bias = layer_weights(plan.graph, op)
            code, out = found[plan.group[op.inputs[0]]], found[plan.group[op.output]]
            rows = np.abs(weight.reshape(len(weight), -1).astype(np.float64)).sum(1)
            most = float((np.abs(bias) + rows * max(code.zero, 255 - code.zero) * code.scale).max(initial=0))
            residual = op.fields.get("residual")
            most += 0.0 if residual is None else 255 * found[plan.group[residual]].scale
            if most / out.scale > LARGEST_STEPS / 2:
                found[plan.group[op.output]] = Affine(float(np.float32(most * 4 / LARGEST_STEPS)), out.zero)
        if found == before:
            return found
    raise ValueError("the scales of values that are joined grow without end: keep one of their layers in float32")


def layer_weights(graph: Graph, op: Op) -> tuple[NDArray[Any], NDArray[Any]]:
    """The weight of a layer, and its bias or zeros."""
    weight = graph.weights[op.fields["weight"]]
    bias = op.fields.get("bias")
    return weight, np.zeros(len(weight)) if bias is None else graph.weights[bias].astype(np.float64).reshape(-1)


def integer_graph(plan: IntegerPlan, codes: Mapping[str, Affine], shifts: Mapping[str, NDArray[Any]]) -> Graph:
    """The graph with bytes and integer layers; ``shifts`` are added to the biases of layers, by what they make."""
    return _Emitter(plan, codes, shifts).run()


def graph_beside(
    plan: IntegerPlan, codes: Mapping[str, Affine], shifts: Mapping[str, NDArray[Any]]
) -> tuple[Graph, list[str]]:
    """The float graph with each integer layer beside its float one, both on the same values of the float network.

    Its outputs are pairs in float32, of the float and the integer layer, behind an activation that is a table; and what
    the layers of the pairs make is called in the plan.
    """
    beside = _Beside(plan, codes, shifts)
    return beside.run(), beside.compared


class _Emitter:
    def __init__(self, plan: IntegerPlan, codes: Mapping[str, Affine], shifts: Mapping[str, NDArray[Any]]) -> None:
        self.plan, self.codes, self.shifts = plan, codes, shifts
        self.graph = Graph(dict(plan.graph.inputs), [], [], dict(plan.graph.weights))
        self.graph.shapes = {name: plan.graph.shapes[name] for name in plan.graph.inputs}
        self.paths = {op.output: op.path for op in plan.graph.ops}

    def run(self) -> Graph:
        for op in self.plan.graph.ops:
            if op.output in self.plan.layers:
                self._layer(op)
            elif op.output in self.plan.tables:
                self._table(op, self.bytes(op.inputs[0]))
            else:
                self._as_it_is(op)
        self.graph.outputs = [self.floats(name) for name in self.plan.graph.outputs]
        drop_unused(self.graph)
        return rename_weights(self.graph)

    def code(self, name: str) -> Affine:
        return self.codes[self.plan.group[name]]

    def bytes(self, name: str) -> str:
        """A value of the float graph as bytes; quantised when it is first asked for, unless it was made as bytes."""
        return self._as("quantize", name, f"{name}.bytes", f"{name}.floats")

    def floats(self, name: str) -> str:
        return self._as("dequantize", name, f"{name}.floats", f"{name}.bytes")

    def _as(self, kind: str, name: str, wanted: str, other: str) -> str:
        if name in self.graph.inputs:
            other = name
            if kind == "dequantize":
                return name
        if wanted not in self.graph.shapes:
            self._emit(Op(kind, self.paths.get(name, ""), [other], wanted, self.code(name).fields), name)
        return wanted

    def _emit(self, op: Op, name: str) -> None:
        """Add what makes the value of this name in the float graph."""
        self.graph.ops.append(op)
        self.graph.shapes[op.output] = self.plan.graph.shapes[name]

    def _made(self, op: Op) -> str:
        return f"{op.output}.{'bytes' if op.output in self.plan.bytes else 'floats'}"

    def _weight(self, name: str, array: NDArray[Any]) -> str:
        self.graph.weights[name] = np.ascontiguousarray(array)
        return name

    def _as_it_is(self, op: Op) -> None:
        read = self.bytes if op.output in self.plan.bytes else self.floats
        fields = dict(op.fields)
        if fields.get("residual") is not None:
            fields["residual"] = read(fields["residual"])
        self._emit(Op(op.kind, op.path, [read(name) for name in op.inputs], self._made(op), fields), op.output)

    def _table(self, op: Op, read: str) -> None:
        every = self.code(op.inputs[0]).values_of(np.arange(256, dtype=np.uint8))
        made = self.code(op.output).bytes_of(computed(op.kind, every, op.fields))
        fields = {"table": self._weight(f"{op.output}.table", made)}
        self._emit(Op("lookup", op.path, [read], self._made(op), fields), op.output)

    def _layer(self, op: Op) -> None:
        name = op.output
        code, out = self.code(op.inputs[0]), self.code(name) if name in self.plan.bytes else None
        weight, bias = layer_weights(self.plan.graph, op)
        bias = bias + self.shifts.get(name, 0.0)
        fields = {key: value for key, value in op.fields.items() if key != "activation"} | {"zero": code.zero}
        made = integer_rows(weight, bias, code=code, unit=1.0 if out is None else out.scale)
        arrays: dict[str, NDArray[Any]] = dict(zip(("weight", "bias", "factor"), made, strict=True))
        fields |= {key: self._weight(f"{name}.{key}", array) for key, array in arrays.items()}
        fields |= self._output_fields(op, out)
        self._emit(Op(LAYERS[op.kind], op.path, [self.bytes(op.inputs[0])], self._made(op), fields), name)

    def _output_fields(self, op: Op, out: Affine | None) -> dict[str, Any]:
        found: dict[str, Any] = dict.fromkeys(("out_zero", "low", "high", "residual", "residual_zero"))
        found["residual_factor"] = None
        residual = op.fields.get("residual")
        if residual is not None:
            found["residual"] = self.floats(residual) if out is None else self.bytes(residual)
        if out is not None:
            activation = op.fields["activation"]
            found |= {"out_zero": out.zero, "low": 0 if activation is None else out.zero, "high": 255}
            if activation == "relu6":
                found["high"] = min(255, out.zero + round(6 / out.scale))
            if residual is not None:
                other = self.code(residual)
                found |= {"residual_factor": float(np.float32(other.scale / out.scale)), "residual_zero": other.zero}
        return found


class _Beside(_Emitter):
    def run(self) -> Graph:
        self.compared: list[str] = []
        users = self.plan.graph.users()
        # Layers that a table alone reads, and what it makes.
        tables = [op for op in self.plan.graph.ops if op.output in self.plan.tables]
        behind = {op.inputs[0]: op.output for op in tables if op.inputs[0] in self.plan.layers}
        behind = {layer: made for layer, made in behind.items() if len(users[layer]) == 1}
        for op in self.plan.graph.ops:
            fields = dict(op.fields)
            if fields.get("residual") is not None:
                fields["residual"] = self.floats(fields["residual"])
            floats = f"{op.output}.floats"
            self._emit(Op(op.kind, op.path, [self.floats(name) for name in op.inputs], floats, fields), op.output)
            if op.output in self.plan.layers:
                self._layer(op)
                if op.output not in behind:
                    self._compare(op, op.output)
            elif op.output in behind.values():
                self._table(op, f"{op.inputs[0]}.beside")
                self._compare(op, op.inputs[0])
        drop_unused(self.graph)
        return rename_weights(self.graph)

    def _compare(self, op: Op, layer: str) -> None:
        beside = self._made(op)
        if op.output in self.plan.bytes:
            self._emit(Op("dequantize", op.path, [beside], f"{beside}.floats", self.code(op.output).fields), op.output)
            beside = f"{beside}.floats"
        self.graph.outputs += [f"{op.output}.floats", beside]
        self.compared.append(layer)

    def _made(self, op: Op) -> str:
        return f"{op.output}.beside"
