"""Reading ONNX files of quantised networks, made by other tools with QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.export.exporting import with_suffix
from softprune.deploy.export.qdq import CODES, Code, Numbers, QdqBuilder, Stored
from softprune.deploy.format.graph import Graph

MOST_BYTES = 2 << 30
MOST_NODES = 100_000
AMPLIFIED = 16  # bytes of weights for each byte of a file, in which nodes may share theirs
# Types of whole numbers that are read, and what makes bytes of them.
SHIFTS = {"uint8": 0, "int8": 128}


def read_onnx_int8(path: str | os.PathLike[str]) -> Graph:
    """A quantised network of an ONNX file as operations of the format, whose bytes are those of the file.

    Convolutions, products, sums, pools, activations between DequantizeLinear and QuantizeLinear compute in integers;
    what is not quantised in the file stays in float32. Activations of 8 bits with a sign become bytes by adding 128.

    Args:
        path: of a file that holds its weights itself; nothing in it is trusted.

    Raises:
        ImportError: if the package onnx is missing.
        OSError: if the file cannot be read.
        ValueError: if it is not such a network; says which node, and why.
    """
    source = with_suffix(path, ".onnx")
    try:
        onnx = import_module("onnx")
    except ImportError as error:
        raise ImportError("ONNX files need the package onnx: pip install 'softprune[onnx]'") from error
    size = source.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{source} has {size:,} bytes, at most {MOST_BYTES:,} are read")
    try:
        model = onnx.load_model_from_string(source.read_bytes())
    except Exception as error:
        raise ValueError(f"{source} is no ONNX file: {error}") from error
    try:
        return _NodeReader(onnx, model.graph, size).graph()
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise ValueError(f"{source}: {error}") from error


class _Node:
    """A node with its attributes as plain values, and its inputs as what they are."""

    def __init__(self, onnx: Any, node: Any, values: Mapping[str, Any]) -> None:
        self.kind, self.path = str(node.op_type), str(node.name)
        self.inputs = [values[name] if name else None for name in node.input]
        self.output = str(node.output[0])
        wanted = ("INT", "INTS", "FLOAT", "STRING", "TENSOR")
        kinds = {getattr(onnx.AttributeProto, kind) for kind in wanted}
        self.attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if a.type in kinds}

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def input(self, place: int) -> Any:
        return self.inputs[place] if place < len(self.inputs) else None

    def constant(self, place: int) -> NDArray[Any] | None:
        """An input that must be constant, or None if there is none."""
        found = self.input(place)
        if found is not None and not isinstance(found, np.ndarray):
            raise ValueError(f"input {place} must be constant")
        return found

    def whole(self, place: int, name: str) -> list[int] | None:
        """A list of whole numbers that is an input, or an attribute in older versions."""
        found = self.constant(place) if len(self.inputs) > place else self.get(name)
        return None if found is None else [int(n) for n in np.asarray(found).reshape(-1)]

    def pairs(self) -> dict[str, Any]:
        """Stride, padding and dilation of a window over an image."""
        if self.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
            raise ValueError(f"auto_pad {self.get('auto_pad')!r} is not read: write pads")
        pads = list(self.get("pads", [0] * 4))
        if len(pads) != 4 or pads[:2] != pads[2:]:
            raise ValueError(f"pads {pads} must be two numbers, the same on both sides")
        return {
            "stride": list(self.get("strides", [1, 1])),
            "padding": pads[:2],
            "dilation": list(self.get("dilations", [1, 1])),
        }


class _NodeReader:
    """The values of a graph while its nodes are read in their order."""

    def __init__(self, onnx: Any, graph: Any, size: int) -> None:
        if len(graph.node) > MOST_NODES:
            raise ValueError(f"it has {len(graph.node):,} nodes, at most {MOST_NODES:,} are read")
        if graph.sparse_initializer:
            raise ValueError("it has sparse initializers: write dense ones")
        self._onnx, self._graph = onnx, graph
        self.builder = QdqBuilder(most_bytes=AMPLIFIED * size + (1 << 20))
        self.values: dict[str, Any] = {tensor.name: self._array(tensor) for tensor in graph.initializer}
        self._uses = Counter(name for node in graph.node for name in node.input)
        self._uses.update({put.name: 2 for put in graph.output})

    def _array(self, tensor: Any) -> NDArray[Any]:
        if tensor.data_location == self._onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise ValueError(f"tensor {tensor.name!r} lies in another file: save the network in one file")
        held = max(len(tensor.raw_data), *(len(getattr(tensor, f)) for f in ("float_data", "int32_data", "int64_data")))
        count = math.prod(tensor.dims)
        if any(size < 0 for size in tensor.dims) or count > 8 * held:
            raise ValueError(f"tensor {tensor.name!r} has shape {list(tensor.dims)}, but only {held} bytes or numbers")
        found: NDArray[Any] = self._onnx.numpy_helper.to_array(tensor)
        return found

    def graph(self) -> Graph:
        for put in self._graph.input:
            if put.name not in self.values:
                self.values[put.name] = self.builder.input(put.name, self._shape(put))
        for proto in self._graph.node:
            where = f"{proto.op_type} {proto.name or ', '.join(proto.output)!r}"
            try:
                node = _Node(self._onnx, proto, self.values)
                self.builder.path = node.path
                made = self._made(node)
            except KeyError as error:
                raise ValueError(f"{where}: no node before it makes {error}") from error
            except (ValueError, TypeError, IndexError) as error:
                raise ValueError(f"{where}: {error}") from error
            shared = self._uses[node.output] > 1
            # What several nodes read is computed once.
            self.values[node.output] = self.builder.number(made) if shared and not isinstance(made, CODES) else made
        outputs = [self.values[put.name] for put in self._graph.output]
        if any(isinstance(x, Code) for x in outputs):
            raise ValueError("an output is of whole numbers: it must be dequantised")
        return self.builder.finish(outputs)

    def _shape(self, put: Any) -> list[int | None]:
        kind = put.type.tensor_type
        if kind.elem_type != self._onnx.TensorProto.FLOAT:
            raise ValueError(f"input {put.name!r} must be float32")
        sizes = [dim.dim_value if dim.WhichOneof("value") == "dim_value" else None for dim in kind.shape.dim]
        if not sizes or any(size is None or size < 1 for size in sizes[1:]):
            raise ValueError(f"input {put.name!r} has shape {sizes}: all sizes but the first must be known")
        return [None, *sizes[1:]]

    def _made(self, node: _Node) -> Any:
        rule = RULES.get(node.kind)
        if rule is None:
            raise ValueError(f"it is not read; these are: {', '.join(sorted(RULES))}")
        return rule(self.builder, node)


def _steps(node: _Node) -> tuple[NDArray[np.float32], NDArray[np.int64], str | None]:
    """Scale, zero and its type of a node that quantises or dequantises."""
    scale, zero = node.constant(1), node.constant(2)
    if scale is None or scale.dtype != np.float32 or not (np.isfinite(scale).all() and (scale > 0).all()):
        raise ValueError("its scale must be positive float32 numbers")
    if node.get("block_size", 0):
        raise ValueError("scales of blocks are not read")
    kind = None if zero is None else zero.dtype.name
    whole = np.zeros(scale.shape, np.int64) if zero is None else zero.astype(np.int64)
    if whole.size != scale.size:
        raise ValueError(f"it has {scale.size} scales and {whole.size} zeros")
    return scale.reshape(-1), whole.reshape(-1), kind


def _single(node: _Node) -> tuple[float, int, str]:
    scale, zero, kind = _steps(node)
    kind = kind or "uint8"
    if scale.size != 1:
        raise ValueError(f"it has {scale.size} scales: only weights may have one for each channel")
    if kind not in SHIFTS:
        raise ValueError(f"it makes {kind}, only uint8 and int8 are read")
    return float(scale[0]), int(zero[0]) + SHIFTS[kind], kind


def _quantize(b: QdqBuilder, node: _Node) -> Any:
    scale, zero, _ = _single(node)
    if node.get("output_dtype", 0) and len(node.inputs) < 3:
        raise ValueError("its type must be given by a zero")
    return b.quantize(node.input(0), scale, zero)


def _dequantize(b: QdqBuilder, node: _Node) -> Any:
    x = node.input(0)
    if not isinstance(x, np.ndarray):
        if not isinstance(x, Code):
            raise ValueError("its input must come from QuantizeLinear")
        scale, zero, _ = _single(node)
        return Numbers(Code(x.name, scale, zero))
    scales, zeros, _ = _steps(node)
    if x.dtype.name not in (*SHIFTS, "int32"):
        raise ValueError(f"constants of {x.dtype} are not read, only int8, uint8 and int32")
    axis = int(node.get("axis", 1))
    if scales.size > 1 and not (-x.ndim <= axis < x.ndim and x.shape[axis] == scales.size):
        raise ValueError(f"it has {scales.size} scales along axis {axis} of shape {x.shape}")
    # Bytes with zero 128 are symmetric too.
    symmetric = bool((zeros == (128 if x.dtype == np.uint8 else 0)).all())
    return Stored(x, zeros, scales, axis % max(x.ndim, 1), symmetric)


def _turned(weight: Any) -> Any:
    """A matrix with its outputs first."""
    if isinstance(weight, Stored):
        return replace(weight, held=weight.held.T, axis=weight.held.ndim - 1 - weight.axis)
    return weight.T if isinstance(weight, np.ndarray) else weight


def _conv(b: QdqBuilder, node: _Node) -> Any:
    fields = {**node.pairs(), "groups": int(node.get("group", 1))}
    return b.layer("conv2d", node.input(0), node.input(1), node.input(2), fields)


def _gemm(b: QdqBuilder, node: _Node) -> Any:
    if node.get("alpha", 1.0) != 1 or node.get("beta", 1.0) != 1 or node.get("transA", 0):
        raise ValueError("alpha and beta must be 1, and transA 0")
    weight = node.input(1) if node.get("transB", 0) else _turned(node.input(1))
    return b.layer("linear", node.input(0), weight, node.input(2), {})


def _matmul(b: QdqBuilder, node: _Node) -> Any:
    x, weight = node.input(0), node.input(1)
    if isinstance(weight, np.ndarray | Stored):
        return b.layer("linear", x, _turned(weight), None, {})
    return b.emit("matmul", [b.number(x), b.number(weight)])


def _clip(b: QdqBuilder, node: _Node) -> Any:
    ends = [
        node.constant(place) if len(node.inputs) > 1 else node.get(name) for place, name in ((1, "min"), (2, "max"))
    ]
    low, high = (None if end is None else float(np.asarray(end).reshape(-1)[0]) for end in ends)
    return b.bound(node.input(0), -np.inf if low is None else low, np.inf if high is None else high)


def _cast(b: QdqBuilder, node: _Node) -> Any:
    x = node.input(0)
    if not isinstance(x, Code) or node.get("to") not in (6, 7):
        raise ValueError("only bytes are read, made int32 or int64, as places in a table")
    return x


def _gather(b: QdqBuilder, node: _Node) -> Any:
    table, x = node.constant(0), node.input(1)
    if table is None or table.dtype != np.uint8 or table.shape != (256,) or not isinstance(x, Code):
        raise ValueError("only entries of a table of 256 bytes are read, at places that are bytes")
    return Code(b.emit("lookup", [x.name], table=b.weight(table)), 1.0, 0)


def _pool(b: QdqBuilder, node: _Node) -> Any:
    if node.get("storage_order", 0):
        raise ValueError("storage_order must be 0")
    fields = {**node.pairs(), "kernel": list(node.get("kernel_shape", [])), "ceil_mode": bool(node.get("ceil_mode", 0))}
    if node.kind == "MaxPool":
        return b.move("max_pool2d", node.input(0), **fields)
    if fields.pop("dilation") != [1, 1]:
        raise ValueError("dilations of means are not read")
    inside = bool(node.get("count_include_pad", 0))
    return b.emit("avg_pool2d", [b.number(node.input(0))], **fields, count_include_pad=inside)


def _reshape(b: QdqBuilder, node: _Node) -> Any:
    x = node.input(0)
    shape = b.shape(x)
    if node.kind == "Flatten":
        if node.get("axis", 1) != 1:
            raise ValueError("axis must be 1")
        return b.move("reshape", x, shape=[None, math.prod(shape[1:])])
    wanted = node.constant(1)
    sizes = [] if wanted is None else [int(n) for n in wanted.reshape(-1)]
    if not sizes or node.get("allowzero", 0):
        raise ValueError("its shape must be constant, and allowzero 0")
    rest = [shape[place] if size == 0 and place < len(shape) else size for place, size in enumerate(sizes)][1:]
    inside = math.prod(shape[1:])
    if rest.count(-1) == 1:
        known = math.prod(n for n in rest if n != -1)
        rest = [inside // known if n == -1 and known else n for n in rest]
    # The first size is the batch, whatever is written there, if the others are as many as a sample has.
    if any(n < 1 for n in rest) or math.prod(rest) != inside:
        raise ValueError(f"shape {sizes} mixes samples: a sample has {inside} numbers")
    return b.move("reshape", x, shape=[None, *rest])


def _transpose(b: QdqBuilder, node: _Node) -> Any:
    axes = node.get("perm") or range(len(b.shape(node.input(0))))[::-1]
    return b.move("permute", node.input(0), axes=list(axes))


def _slice(b: QdqBuilder, node: _Node) -> Any:
    x = node.input(0)
    starts, ends = node.whole(1, "starts") or [], node.whole(2, "ends") or []
    axes = node.whole(3, "axes") or list(range(len(starts)))
    steps = node.whole(4, "steps") or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ValueError("starts, ends, axes and steps must be as many")
    for start, stop, axis, step in zip(starts, ends, axes, steps, strict=True):
        x = b.move("slice", x, axis=axis, start=start, stop=stop, step=step)
    return x


def _mean(b: QdqBuilder, node: _Node) -> Any:
    x = b.number(node.input(0))
    if node.kind == "GlobalAveragePool":
        return b.emit("adaptive_avg_pool2d", [x], size=[1, 1])
    return b.emit("mean", [x], axes=node.whole(1, "axes"), keepdim=bool(node.get("keepdims", 1)))


def _product(b: QdqBuilder, node: _Node) -> Any:
    x, y = node.input(0), node.input(1)
    x, y = (y, x) if isinstance(x, np.ndarray) else (x, y)
    if isinstance(y, np.ndarray) and y.size == 1:
        return b.emit("mul", [b.number(x)], value=float(y.reshape(-1)[0]))
    return b.emit("mul", [b.number(x), b.number(y)])


def _curve(kind: str) -> Callable[[QdqBuilder, _Node], Any]:
    return lambda b, node: b.curve(kind, node.input(0))


RULES: dict[str, Callable[[QdqBuilder, _Node], Any]] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "Conv": _conv,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Add": lambda b, node: b.add(node.input(0), node.input(1)),
    "Mul": _product,
    "Relu": _curve("relu"),
    "Clip": _clip,
    "Cast": _cast,
    "Gather": _gather,
    "Sigmoid": _curve("sigmoid"),
    "Tanh": _curve("tanh"),
    "HardSwish": _curve("hardswish"),
    "MaxPool": _pool,
    "AveragePool": _pool,
    "GlobalAveragePool": _mean,
    "ReduceMean": _mean,
    "Concat": lambda b, node: b.concat(node.inputs, int(node.get("axis"))),
    "Flatten": _reshape,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Slice": _slice,
    "Identity": lambda b, node: node.input(0),
    "Softmax": lambda b, node: b.emit("softmax", [b.number(node.input(0))], axis=int(node.get("axis", -1))),
}
