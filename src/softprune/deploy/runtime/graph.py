"""Graph: the operations of a file, checked field by field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from softprune.deploy.runtime.tensorfile import whole_numbers

Check = Callable[[Any], bool]
MAX_OPS = 100_000
# Beyond these sizes products of sizes would leave the range of the kernels' numbers.
MAX_SIZE = 1 << 24
# The largest number in 32 bits.
MAX_FLOAT = 3.4028234663852886e38


@dataclass(frozen=True)
class Op:
    """One operation: its kind, where it comes from, what it reads and makes, and all other fields."""

    kind: str
    path: str
    inputs: tuple[str, ...]
    output: str
    fields: Mapping[str, Any]

    @property
    def reads(self) -> tuple[str, ...]:
        """The inputs and the residual."""
        residual = self.fields.get("residual")
        return self.inputs if residual is None else (*self.inputs, residual)

    def __str__(self) -> str:
        return f"{self.kind} at {self.path!r}"


@dataclass(frozen=True)
class Graph:
    """Operations in order of execution."""

    inputs: Mapping[str, tuple[int | None, ...]]
    outputs: tuple[str, ...]
    ops: tuple[Op, ...]
    document: Mapping[str, Any]


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_SIZE


def _number(value: Any) -> bool:
    # Compared, not converted: a whole number of a file may be larger than any float.
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_FLOAT <= value <= MAX_FLOAT


def _name(value: Any) -> bool:
    return isinstance(value, str)


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _pair(least: int) -> Check:
    return lambda value: whole_numbers(value) and len(value) == 2 and least <= min(value) and max(value) <= MAX_SIZE


def _axes(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) <= 6 and all(_integer(axis) for axis in value)


def _new_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 6 and all(n is None or (_integer(n) and n >= -1) for n in value)


def _scales(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_number(n) and 0 < n <= 1024 for n in value)


def _steepness(value: Any) -> bool:
    # Beyond these the quotient by it would leave the range of the numbers.
    return _number(value) and 1e-6 <= value <= 1e6


def _frame(value: Any) -> bool:
    return whole_numbers(value) and len(value) == 4 and max(value) <= MAX_SIZE


def _boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _one_of(*values: Any) -> Check:
    return lambda value: value in values


_ACTIVATION = _optional(_one_of("relu", "relu6", "hardswish", "silu", "gelu", "sigmoid", "tanh", "mish"))
_AFTER: dict[str, Check] = {"bias": _optional(_name), "activation": _ACTIVATION, "residual": _optional(_name)}
_CONV: dict[str, Check] = {
    "weight": _name,
    "stride": _pair(1),
    "padding": _pair(0),
    "dilation": _pair(1),
    "groups": lambda n: _integer(n) and n > 0,
    **_AFTER,
}
_POOL: dict[str, Check] = {"kernel": _pair(1), "stride": _pair(1), "padding": _pair(0), "ceil_mode": _boolean}

# kind -> (numbers of inputs, fields with their checks); a field whose check takes None may be absent
OPERATIONS: dict[str, tuple[range, dict[str, Check]]] = {
    "conv2d": (range(1, 2), _CONV),
    "conv_transpose2d": (range(1, 2), {**_CONV, "output_padding": _pair(0)}),
    "linear": (range(1, 2), {"weight": _name, **_AFTER}),
    "max_pool2d": (range(1, 2), {**_POOL, "dilation": _pair(1)}),
    "avg_pool2d": (range(1, 2), {**_POOL, "count_include_pad": _boolean}),
    "adaptive_avg_pool2d": (range(1, 2), {"size": _pair(1)}),
    "mean": (range(1, 2), {"axes": _axes, "keepdim": _boolean}),
    "add": (range(1, 3), {"value": _optional(_number)}),
    "mul": (range(1, 3), {"value": _optional(_number)}),
    "concat": (range(1, 1025), {"axis": _integer}),
    **{
        kind: (range(1, 2), {})
        for kind in ("relu", "relu6", "hardswish", "hardsigmoid", "silu", "sigmoid", "tanh", "mish", "identity")
    },
    "elu": (range(1, 2), {"alpha": _number}),
    "softplus": (range(1, 2), {"beta": _steepness, "threshold": _number}),
    "gelu": (range(1, 2), {"approximate": _one_of("none", "tanh")}),
    "softmax": (range(1, 2), {"axis": _integer}),
    "layer_norm": (
        range(1, 2),
        {"weight": _optional(_name), "bias": _optional(_name), "eps": _number, "axes": _axes},
    ),
    "scale_shift": (range(1, 2), {"scale": _name, "shift": _name}),
    "reshape": (range(1, 2), {"shape": _new_shape}),
    "permute": (range(1, 2), {"axes": _axes}),
    "slice": (
        range(1, 2),
        {
            "axis": _integer,
            "start": _optional(lambda n: isinstance(n, int)),
            "stop": _optional(lambda n: isinstance(n, int)),
            "step": lambda n: _integer(n) and n > 0,
        },
    ),
    "matmul": (range(2, 3), {}),
    "attention": (range(3, 4), {"scale": _number, "mask": _optional(_name)}),
    "resize": (
        range(1, 2),
        {
            "size": _optional(_pair(1)),
            "scale": _optional(_scales),
            "mode": _one_of("nearest", "bilinear"),
            "align_corners": _optional(_boolean),
        },
    ),
    "pad": (range(1, 2), {"padding": _frame, "mode": _one_of("reflect", "circular", "replicate")}),
    "constant": (range(0, 1), {"weight": _name}),
}
WEIGHT_FIELDS = ("weight", "bias", "scale", "shift", "mask")


def read_graph(document: Any) -> Graph:
    """Check a graph as a file has it.

    Raises:
        ValueError: if an operation, a field or a name is not one of the format; says which.
    """
    if not isinstance(document, dict) or not all(
        isinstance(document.get(k), list) for k in ("inputs", "outputs", "ops")
    ):
        raise ValueError("the graph must have lists of inputs, outputs and ops")
    if not isinstance(document.get("weights"), dict):
        raise ValueError("the graph must have an object of weights")
    if len(document["ops"]) > MAX_OPS:
        raise ValueError(f"the graph has {len(document['ops'])} operations, at most {MAX_OPS} are allowed")
    inputs = dict(_input(entry) for entry in document["inputs"])
    if len(inputs) != len(document["inputs"]) or not inputs:
        raise ValueError("the inputs of the graph must be one or more, with different names")
    known = set(inputs)
    ops = []
    for entry in document["ops"]:
        op = _op(entry, document["weights"])
        missing = [name for name in op.reads if name not in known]
        if missing or op.output in known:
            what = f"reads {missing[0]!r} before it is made" if missing else f"makes {op.output!r} a second time"
            raise ValueError(f"{op} {what}")
        known.add(op.output)
        ops.append(op)
    outputs = document["outputs"]
    if not outputs or not all(isinstance(name, str) and name in known for name in outputs):
        raise ValueError(f"the outputs {outputs!r} must be values of the graph")
    return Graph(inputs, tuple(outputs), tuple(ops), document)


def _input(entry: Any) -> tuple[str, tuple[int | None, ...]]:
    fits = isinstance(entry, dict) and _name(entry.get("name")) and isinstance(entry.get("shape"), list)
    shape = entry["shape"] if fits else []
    if not fits or not 1 <= len(shape) <= 6 or not whole_numbers(shape[1:]) or max([1, *shape[1:]]) > MAX_SIZE:
        raise ValueError(f"an input must have a name and a shape of 1 to 6 sizes, got {entry!r:.200}")
    if shape[0] is not None and not (_integer(shape[0]) and shape[0] >= 0):
        raise ValueError(f"the first size of input {entry['name']!r} must be null or a number, got {shape[0]!r:.50}")
    return entry["name"], tuple(shape)


def _op(entry: Any, weights: Mapping[str, Any]) -> Op:
    if not isinstance(entry, dict) or not isinstance(entry.get("op"), str) or entry["op"] not in OPERATIONS:
        kind = entry.get("op") if isinstance(entry, dict) else entry
        raise ValueError(f"operation {kind!r:.100} is none of the format's; known are {', '.join(OPERATIONS)}")
    path, output = entry.get("path", ""), entry.get("output")
    inputs: Any = entry.get("inputs")
    named = isinstance(inputs, list) and all(isinstance(name, str) for name in inputs)
    if not isinstance(path, str) or not named or not isinstance(output, str):
        raise ValueError(f"operation {entry['op']!r} must have a path, inputs and an output, all texts")
    counts, checks = OPERATIONS[entry["op"]]
    if len(inputs) not in counts:
        raise ValueError(f"{entry['op']} at {path!r} has {len(inputs)} inputs, must have {counts[0]} to {counts[-1]}")
    fields = {key: value for key, value in entry.items() if key not in ("op", "path", "inputs", "output")}
    for key, check in checks.items():
        if not check(fields.get(key)):
            raise ValueError(f"{entry['op']} at {path!r}: {key} is {fields.get(key)!r:.100}, which does not fit")
    unknown = sorted(set(fields) - set(checks))
    if unknown:
        raise ValueError(f"{entry['op']} at {path!r} has fields that the format does not know: {', '.join(unknown)}")
    for key in WEIGHT_FIELDS:
        if isinstance(fields.get(key), str) and fields[key] not in weights:
            raise ValueError(f"{entry['op']} at {path!r}: there is no weight {fields[key]!r}")
    return Op(entry["op"], path, tuple(inputs), output, fields)
