"""Integer graphs from programs of other tools, in which layers stand between dequantisation and quantisation.

A program is followed value by value. What a layer makes is held back until its reader is known: where that is a
quantisation, layer, residual, bounds and rounding become one operation on bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.export.passes import simplify
from softprune.deploy.format.graph import Graph, Op, Weight
from softprune.deploy.format.operations import OPERATIONS, infer
from softprune.deploy.format.shapes import Scope, Shape
from softprune.deploy.format.spx import check_built
from softprune.deploy.format.value_kinds import LARGEST_WEIGHT, LEAST_SCALE, MOST_SCALE

f32 = np.float32
BATCH = 11  # stands for the batch while a program is read
LARGEST = (1 << 31) - 1


@dataclass(frozen=True)
class Code:
    """A value of bytes, of which q stands for (q - zero) * scale; as what was dequantised, or before."""

    name: str
    scale: float
    zero: int

    def table(self, values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """The byte of each number."""
        with np.errstate(over="ignore"):
            steps = np.rint(values / f32(self.scale))
        return (np.clip(steps, -self.zero, 255 - self.zero) + self.zero).astype(np.uint8)

    @property
    def numbers(self) -> NDArray[np.float32]:
        """What each of the 256 bytes stands for."""
        return (np.arange(256, dtype=np.float32) - f32(self.zero)) * f32(self.scale)


@dataclass(frozen=True)
class Numbers:
    """What bytes stand for."""

    code: Code


@dataclass(frozen=True)
class Stored:
    """A constant of whole numbers: q stands for (q - zero) * scale, with one of both or as many as an axis is long."""

    held: NDArray[Any]
    zero: NDArray[np.int64]
    scale: NDArray[np.float32]
    axis: int
    symmetric: bool = True  # whether the zero lies in the middle

    def _along(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape([-1 if at == self.axis and array.size > 1 else 1 for at in range(self.held.ndim)])

    @property
    def values(self) -> NDArray[Any]:
        """Without their zero."""
        found: NDArray[Any] = self.held.astype(np.int64 if self.held.itemsize > 1 else np.int16)
        found -= self._along(self.zero).astype(found.dtype)
        return found

    def reshaped(self, shape: Shape) -> Stored:
        """With the same axis in front."""
        return replace(self, held=self.held.reshape(shape))

    @property
    def numbers(self) -> NDArray[np.float32]:
        found: NDArray[np.float32] = self.values.astype(np.float32) * self._along(self.scale)
        return found


@dataclass(frozen=True)
class Layer:
    """A layer on bytes, or a sum of bytes if it has no weight, whose output is not rounded yet."""

    kind: str
    x: Code
    shape: Shape
    path: str
    weight: Stored | None = None  # one scale for each output
    bias: NDArray[Any] | None = None  # real numbers
    fields: dict[str, Any] | None = None
    residual: Code | str | None = None  # of float32 where the output is
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class Activated:
    """A function of one value of bytes."""

    x: Code
    values: NDArray[np.float32]  # of the 256 bytes
    kind: str
    path: str


@dataclass(frozen=True)
class Joined:
    """Bytes of different scales side by side."""

    parts: tuple[Code, ...]
    axis: int
    path: str


CURVES: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x.astype(np.float64))),
    "tanh": np.tanh,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
}
BOUNDS = {"relu": (0.0, np.inf), "relu6": (0.0, 6.0)}


# What several readers may have without computing it twice.
CODES = str, Code, Numbers, Stored, np.ndarray


class QdqBuilder:
    """A graph while a program is read: each method takes what values are and returns what one is."""

    path = ""  # of the module that is being read

    def __init__(self, *, most_bytes: int = 8 << 30) -> None:
        self.graph = Graph()
        self._left = most_bytes  # of weights
        self.shapes: dict[str, Shape] = {}
        self._weights: dict[str, Weight] = {}
        self._floats: dict[Code, str] = {}

    def input(self, name: str, shape: Sequence[int | None]) -> str:
        self.graph.inputs[name] = tuple(shape)
        self.shapes[name] = tuple(BATCH if size is None else size for size in shape)
        return name

    def emit(self, kind: str, inputs: Sequence[str], path: str | None = None, **fields: Any) -> str:
        """Add an operation whose fields and shapes fit; the name of its value."""
        op = Op(kind, self.path if path is None else path, list(inputs), f"t{len(self.graph.ops)}", fields)
        self.shapes[op.output] = self._fit(op, self._weights)
        self.graph.ops.append(op)
        return op.output

    def _fit(self, op: Op, weights: Mapping[str, Weight]) -> Shape:
        """The shape that an operation makes, after a check of its fields, of which it gets all."""
        op.fields = {**dict.fromkeys(OPERATIONS[op.kind].fields), **op.fields}
        for key, check in OPERATIONS[op.kind].fields.items():
            if not check(op.fields[key]):
                raise ValueError(f"{op}: {key} is {op.fields[key]!r:.100}, which is not in the format")
        return OPERATIONS[op.kind].shape(Scope(op, self.shapes, weights, BATCH))

    def weight(self, array: NDArray[Any]) -> str:
        self._left -= array.nbytes
        if self._left < 0:
            raise ValueError("the weights are shared so often that they would fill the memory")
        name = f"w{len(self.graph.weights)}"
        self.graph.weights[name] = np.ascontiguousarray(array)
        self._weights[name] = Weight(array.shape, self.graph.weights[name])
        return name

    def shape(self, x: Any) -> Shape:
        if isinstance(x, Layer):
            return x.shape
        if isinstance(x, Joined):
            shapes = [self.shapes[part.name] for part in x.parts]
            return tuple(sum(sizes) if at == x.axis else sizes[0] for at, sizes in enumerate(zip(*shapes, strict=True)))
        if isinstance(x, Activated):
            return self.shapes[x.x.name]
        return self.shapes[x.code.name if isinstance(x, Numbers) else x]

    # Values.

    def number(self, x: Any) -> str:
        """The float32 value of anything but a constant of whole numbers."""
        if isinstance(x, Numbers):
            if x.code not in self._floats:
                self._floats[x.code] = self.emit("dequantize", [x.code.name], scale=x.code.scale, zero=x.code.zero)
            return self._floats[x.code]
        if isinstance(x, Layer):
            return self._float_layer(x)
        if isinstance(x, Activated):
            return self.emit(x.kind, [self.number(Numbers(x.x))], x.path)
        if isinstance(x, Joined):
            return self.emit("concat", [self.number(Numbers(part)) for part in x.parts], x.path, axis=x.axis)
        if isinstance(x, Stored | np.ndarray):
            numbers = x.numbers if isinstance(x, Stored) else x.astype(np.float32)
            return self.emit("constant", [], weight=self.weight(numbers))
        if not isinstance(x, str):
            raise ValueError(f"a value of float32 numbers is needed where there is {type(x).__name__}")
        return x

    def quantize(self, x: Any, scale: float, zero: int) -> Code:
        if not LEAST_SCALE <= scale <= MOST_SCALE or not 0 <= zero <= 255:
            raise ValueError(f"scale {scale} and zero {zero} must be {LEAST_SCALE:g} to {MOST_SCALE:g}, and 0 to 255")
        made = Code("", scale, zero)
        if isinstance(x, Layer) and not isinstance(x.residual, str):
            return replace(made, name=self._byte_layer(x, made, x.residual))
        if isinstance(x, Joined):
            parts = [self.quantize(Numbers(part), scale, zero).name for part in x.parts]
            return replace(made, name=self.emit("concat", parts, x.path, axis=x.axis))
        if isinstance(x, Activated | Numbers):
            code, path = (x.x, x.path) if isinstance(x, Activated) else (x.code, self.path)
            table = made.table(x.values if isinstance(x, Activated) else code.numbers)
            if np.array_equal(table, np.arange(256)):
                return replace(made, name=code.name)
            return replace(made, name=self.emit("lookup", [code.name], path, table=self.weight(table)))
        return replace(made, name=self.emit("quantize", [self.number(x)], scale=scale, zero=zero))

    def layer(self, kind: str, x: Any, weight: Any, bias: Any, fields: dict[str, Any]) -> Any:
        """A convolution or a linear layer with constant weights, outputs first."""
        held = weight.held if isinstance(weight, Stored) else weight
        if not isinstance(held, np.ndarray) or held.ndim < 2:
            raise ValueError("the weights of a layer must be constant, with their outputs first")
        if isinstance(bias, Stored) and bias.held.size == len(held):
            bias = bias.numbers
        if bias is not None and (not isinstance(bias, np.ndarray) or bias.size != len(held)):
            raise ValueError(f"the bias must be {len(held)} constant numbers")
        if isinstance(x, Numbers) and isinstance(weight, Stored):
            if weight.scale.size > 1 and weight.axis != 0:
                raise ValueError(f"weights have scales along axis {weight.axis}, must be along their outputs")
            if not weight.symmetric:
                raise ValueError("asymmetric weights are not read: their zero must be in the middle, 0 of int8")
            scale = np.broadcast_to(weight.scale.reshape(-1), (len(held),))
            stored = replace(weight, scale=scale)
            probe = Op(kind, self.path, [x.code.name], "", {**fields, "weight": "w"})
            shape = self._fit(probe, {"w": Weight(held.shape, held)})
            return Layer(f"{kind}_int8", x.code, shape, self.path, stored, bias, fields)
        plain = weight.numbers if isinstance(weight, Stored) else held
        names = {"weight": self.weight(plain.astype(np.float32))}
        if bias is not None:
            names["bias"] = self.weight(bias.astype(np.float32).reshape(-1))
        return self.emit(kind, [self.number(x)], **fields, **names)

    def add(self, x: Any, y: Any) -> Any:
        """A sum: into a layer as its bias or residual, of bytes, or in float32."""
        if isinstance(y, Layer) or isinstance(x, np.ndarray | Stored):
            x, y = y, x
        unfinished = isinstance(x, Layer) and x.weight is not None and x.residual is None and x.bounds is None
        if isinstance(y, np.ndarray | Stored):
            bias = y.numbers if isinstance(y, Stored) else y
            if unfinished and x.kind == "linear_int8" and x.bias is None and bias.size == x.shape[-1] == bias.shape[-1]:
                return replace(x, bias=bias.reshape(-1))
        elif unfinished and isinstance(y, Numbers | str) and x.shape == self.shape(y):
            return replace(x, residual=y if isinstance(y, str) else y.code)
        elif (
            isinstance(x, Numbers)
            and isinstance(y, Numbers)
            and len(self.shape(x)) == 4
            and self.shape(x) == self.shape(y)
        ):
            return Layer("sum", x.code, self.shape(x), self.path, residual=y.code)
        if isinstance(y, np.ndarray) and y.size == 1:
            return self.emit("add", [self.number(x)], value=float(y.reshape(-1)[0]))
        return self.emit("add", [self.number(x), self.number(y)])

    def curve(self, kind: str, x: Any) -> Any:
        """An activation."""
        if isinstance(x, Layer) and kind in BOUNDS and x.bounds is None:
            return replace(x, bounds=BOUNDS[kind])
        if isinstance(x, Numbers):
            return Activated(x.code, CURVES[kind](x.code.numbers).astype(np.float32), kind, self.path)
        return self.emit(kind, [self.number(x)])

    def bound(self, x: Any, low: float, high: float) -> Any:
        """A value between bounds."""
        if not low <= high:
            raise ValueError(f"bounds {low} and {high} must be in order")
        if isinstance(x, Layer) and x.bounds is None:
            return replace(x, bounds=(low, high))
        for kind, bounds in BOUNDS.items():
            if bounds == (low, high):
                return self.curve(kind, x)
        if not isinstance(x, Numbers):
            raise ValueError(f"bounds {low} and {high} of float32 numbers are not read, only 0 and 6 or 0 and none")
        table = x.code.table(np.clip(x.code.numbers, low, high))
        return Numbers(replace(x.code, name=self.emit("lookup", [x.code.name], table=self.weight(table))))

    def move(self, kind: str, x: Any, **fields: Any) -> Any:
        """An operation that moves or compares values, bytes as they are."""
        if isinstance(x, Numbers):
            return Numbers(replace(x.code, name=self.emit(kind, [x.code.name], **fields)))
        return self.emit(kind, [self.number(x)], **fields)

    def concat(self, parts: Sequence[Any], axis: int) -> Any:
        if not all(isinstance(part, Numbers) for part in parts):
            return self.emit("concat", [self.number(part) for part in parts], axis=axis)
        codes = tuple(part.code for part in parts)
        if len({(code.scale, code.zero) for code in codes}) == 1:
            return Numbers(replace(codes[0], name=self.emit("concat", [code.name for code in codes], axis=axis)))
        return Joined(codes, axis, self.path)

    # Layers.

    def _integers(self, layer: Layer) -> dict[str, Any]:
        """Weight and bias of a layer, without the factor."""
        if layer.weight is None:  # a sum: one weight of 1 for each channel
            channels = layer.shape[1]
            ones = self.weight(np.ones((channels, 1, 1, 1), np.int8))
            return {"weight": ones, "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": channels}
        values = layer.weight.values
        if np.abs(values).max(initial=0) > LARGEST_WEIGHT:
            raise ValueError(f"{layer.path!r}: weights must be -{LARGEST_WEIGHT} to {LARGEST_WEIGHT}")
        fields = {**(layer.fields or {}), "weight": self.weight(values.astype(np.int8))}
        if layer.bias is not None:
            unit = f32(layer.x.scale) * layer.weight.scale
            steps = np.rint(layer.bias.astype(np.float64).reshape(-1) / unit)
            if not (np.abs(steps) <= LARGEST).all():
                raise ValueError(f"{layer.path!r}: the bias is more than {LARGEST} steps")
            fields["bias"] = self.weight(steps.astype(np.int32))
        return fields

    def _emit_layer(self, layer: Layer, unit: np.float32, **fields: Any) -> str:
        kind = "conv2d_int8" if layer.weight is None else layer.kind
        scale = np.ones(layer.shape[1], np.float32) if layer.weight is None else layer.weight.scale
        with np.errstate(all="ignore"):
            factor = (f32(layer.x.scale) * scale) / unit
        inputs = [layer.x.name]
        whole = {**self._integers(layer), **fields, "factor": self.weight(factor.astype(np.float32))}
        return self.emit(kind, inputs, layer.path, zero=layer.x.zero, **whole)

    def _byte_layer(self, layer: Layer, out: Code, residual: Code | None) -> str:
        low, high = 0, 255
        if layer.bounds is not None:
            low, high = (int(n) for n in out.table(np.array(layer.bounds, np.float32)))
        fields: dict[str, Any] = {"out_zero": out.zero, "low": low, "high": high}
        if residual is not None:
            rate = float(f32(residual.scale) / f32(out.scale))
            fields |= {"residual": residual.name, "residual_factor": rate, "residual_zero": residual.zero}
        return self._emit_layer(layer, f32(out.scale), **fields)

    def _float_layer(self, layer: Layer) -> str:
        residual = self.number(Numbers(layer.residual)) if isinstance(layer.residual, Code) else layer.residual
        if layer.weight is None:
            assert residual is not None
            name = self.emit("add", [self.number(Numbers(layer.x)), residual], layer.path)
        else:
            name = self._emit_layer(layer, f32(1), residual=residual)
        return name if layer.bounds is None else str(self.bound(name, *layer.bounds))

    def finish(self, outputs: Sequence[Any]) -> Graph:
        """The graph, checked and simplified."""
        for x in outputs:
            name = self.number(x)
            again = name in self.graph.inputs or name in self.graph.outputs
            self.graph.outputs.append(self.emit("identity", [name]) if again else name)
        few, more = (infer(self.graph, self._weights, batch) for batch in (2, 3))
        self.graph.shapes = {
            name: tuple(n if n == m else "batch" for n, m in zip(shape, more[name], strict=True))
            for name, shape in few.items()
        }
        graph = simplify(self.graph)
        check_built(graph)
        return graph
