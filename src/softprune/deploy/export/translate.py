"""From a captured program to a graph of the format's operations, by a table of rules for ATen's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from softprune.deploy.format.graph import Array, Graph, Op, SymbolicShape
from softprune.structure.program import module_path

MOST_AXES = 6


class UnsupportedError(ValueError):
    """An operation that the format cannot express, with the reason."""


@dataclass(frozen=True)
class SharedMask:
    """A constant that is not float32 and the same for all samples: [1, ...] in the place of [batch, ...]."""

    tensor: Tensor


class GraphBuilder:
    """A graph while it grows: rules read their arguments from it and emit operations into it.

    Every node of the program is one of three things here: a value (its name in the graph), a constant (a tensor that
    no input reaches), or something else, such as the size of the batch.
    """

    node: Node  # that is being translated; what is emitted has its shape and its path

    def __init__(self) -> None:
        self.graph = Graph()
        self.batch = ""  # what shapes call the size of the batch
        self._known: dict[Node, Any] = {}
        self._weights: dict[tuple[int, tuple[int, ...]], str] = {}
        self._kept: list[Array] = []  # keeps the arrays alive that are known by their address

    def __getitem__(self, what: Any) -> Any:
        """What an argument of a node is: a value's name, a constant tensor, a list of these, or a plain argument."""
        if isinstance(what, Node):
            return self._known[what]
        return [self[item] for item in what] if isinstance(what, list | tuple) else what

    def __setitem__(self, node: Node, what: Any) -> None:
        self._known[node] = what

    def value(self, what: Any) -> str:
        """The name of a value; a constant becomes one."""
        found = self[what]
        if isinstance(found, Tensor):
            return self.emit("constant", [], tuple(found.shape), weight=self.weight(found))
        if not isinstance(found, str):
            raise UnsupportedError(f"a tensor is needed, got {found!r}")
        return found

    def constant(self, node: Node, what: str) -> Tensor:
        """A tensor that must not depend on the inputs."""
        found = self[node]
        if not isinstance(found, Tensor):
            raise UnsupportedError(f"its {what} is computed from an input, only a constant one is in the format")
        return found

    def weight(self, tensor: Tensor | Array) -> str:
        """The name of a constant among the weights, where the same tensor is put once."""
        if isinstance(tensor, Tensor):
            tensor = tensor.detach().to(torch.float32).numpy()
        key = (tensor.__array_interface__["data"][0], (*tensor.shape, *tensor.strides))
        if tensor.size == 0 or key not in self._weights:
            name = f"w{len(self._kept)}"
            self._kept.append(tensor)
            self._weights[key] = name
            self.graph.weights[name] = np.ascontiguousarray(tensor, dtype=np.float32)
        return self._weights[key]

    def bias(self, node: Node | None) -> str | None:
        return None if node is None else self.weight(self.constant(node, "bias"))

    def emit(self, kind: str, inputs: Sequence[Any], shape: SymbolicShape | None = None, /, **fields: Any) -> str:
        """Add an operation on nodes, values or constants; the name of its value, shaped as the node's by default."""
        names = [self.value(x) for x in inputs]
        made = self.made if shape is None else shape
        if len(made) > MOST_AXES:
            raise UnsupportedError(f"shape {made} has {len(made)} axes, the format has at most {MOST_AXES}")
        output = f"t{len(self.graph.shapes)}"
        self.graph.ops.append(Op(kind, module_path(self.node), names, output, fields))
        self.graph.shapes[output] = made
        return output

    def reshape(self, what: Any, shape: SymbolicShape) -> str:
        """A value with the same elements in another shape."""
        value = self.value(what)
        if self.shape(value) == shape:
            return value
        # None is the batch, -1 a size that follows from the others.
        sizes = [size if isinstance(size, int) else None if size == self.batch else -1 for size in shape]
        if sizes.count(-1) > 1:
            raise UnsupportedError(f"a shape {shape} has more than one size that depends on the batch")
        return self.emit("reshape", [value], shape, shape=sizes)

    def shape(self, what: Node | str) -> SymbolicShape:
        """The shape of what a node makes, or of a value; sizes that depend on the batch as text."""
        return self.graph.shapes[what] if isinstance(what, str) else shape_of(what.meta["val"])

    @property
    def made(self) -> SymbolicShape:
        return self.shape(self.node)

    def axis(self, x: Node, axis: int) -> int:
        """An axis counted from the front."""
        return axis % len(self.shape(x))

    def length(self, x: Node, axis: int) -> int:
        """The size of an axis, which must not be the batch."""
        size = self.shape(x)[axis]
        if not isinstance(size, int):
            raise UnsupportedError("it works along the batch, and samples do not see each other in the format")
        return size


def shape_of(tensor: Tensor) -> SymbolicShape:
    """The shape of a captured tensor; sizes that depend on the batch as text."""
    return tuple(size if isinstance(size, int) else str(size) for size in tensor.shape)


# From the name of an ATen operation to what emits it: called with the builder and the arguments of the node.
Rules = Mapping[str, Callable[..., Any]]


def aten(rule: Callable[..., Any], *names: str) -> Rules:
    """One rule for several ATen operations; a name without an overload means the default one."""
    return {f"aten.{name}" if "." in name else f"aten.{name}.default": rule for name in names}


def translate(program: ExportedProgram, rules: Rules) -> Graph:
    """The program in the operations of the format, one for one; a ValueError names every operation that is missing."""
    builder = GraphBuilder()
    faults = _declare(builder, program)
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        builder.node = node
        try:
            builder[node] = _translated(builder, node, rules)
        except UnsupportedError as error:
            faults.append(f"{module_path(node) or 'the module itself'}: {node.target} ({error})")
            builder[node] = _stand_in(builder, node)
    if not faults:
        faults = _outputs(builder, program)
    if faults:
        raise ValueError(
            "these operations are not in the format, and nothing was written:\n  " + "\n  ".join(dict.fromkeys(faults))
        )
    return builder.graph


def _declare(builder: GraphBuilder, program: ExportedProgram) -> list[str]:
    """Say what each placeholder is; returns what is wrong with inputs and outputs."""
    faults = []
    held = {**program.state_dict, **program.constants}
    places = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        node = places[getattr(spec.arg, "name", "")]
        if spec.kind != InputKind.USER_INPUT:
            builder[node] = held.get(spec.target) if spec.target is not None else None
            continue
        name = f"x{len(builder.graph.inputs)}"
        shape = builder.shape(node) if isinstance(node.meta.get("val"), Tensor) else ()
        if not shape or isinstance(shape[0], int) or not all(isinstance(size, int) for size in shape[1:]):
            faults.append(f"input {node.name} has shape {shape}: only its first size may vary, and it must")
            continue
        builder.batch = str(shape[0])
        builder.graph.inputs[name] = (None, *(int(size) for size in shape[1:]))
        builder.graph.shapes[name] = shape
        builder[node] = name
    for spec in program.graph_signature.output_specs:
        if spec.kind != OutputKind.USER_OUTPUT:
            faults.append(f"{spec.target} is changed by forward: only networks without a memory can be exported")
    return faults


def _translated(builder: GraphBuilder, node: Node, rules: Rules) -> Any:
    """What the node is, after its operations were emitted."""
    made = node.meta.get("val")
    if not isinstance(made, Tensor | list | tuple):
        return None  # sizes of the batch and checks of them: shapes are read from the tensors themselves
    if _is_constant(builder, node):
        return _evaluated(builder, node)
    single = not isinstance(made, Tensor) or made.dtype == torch.float32
    if str(node.target) == "aten.expand.default" and not single and isinstance(builder[node.args[0]], Tensor):
        sizes = [size if isinstance(size, int) else 1 for size in builder.made]
        return SharedMask(builder[node.args[0]].expand(sizes))
    rule = rules.get(str(node.target))
    if rule is None:
        raise UnsupportedError("unknown to the format")
    if not single and not str(node.target).startswith("quantized_decomposed."):
        raise UnsupportedError(f"makes {made.dtype}, and all values are float32")  # type: ignore[union-attr]
    return rule(builder, *node.args, **node.kwargs)


def _is_constant(builder: GraphBuilder, node: Node) -> bool:
    """Whether no input reaches this node, not even through the size of the batch."""
    found = [builder[n] for n in node.all_input_nodes]
    return all(isinstance(f, Tensor | list) and not any(isinstance(part, str) for part in _flat(f)) for f in found)


def _flat(what: Any) -> list[Any]:
    return [part for item in what for part in _flat(item)] if isinstance(what, list) else [what]


@torch.no_grad()
def _evaluated(builder: GraphBuilder, node: Node) -> Any:
    made = node.target(*builder[node.args], **{key: builder[value] for key, value in node.kwargs.items()})  # type: ignore[operator]
    return list(made) if isinstance(made, tuple) else made


def _stand_in(builder: GraphBuilder, node: Node) -> Any:
    """Something in the place of a value that cannot be made, so that the faults behind it are found too."""
    made = node.meta.get("val")
    many = isinstance(made, list | tuple)
    names = []
    for position, tensor in enumerate(made if many else [made]):  # type: ignore[arg-type]
        names.append(f"missing_{node.name}_{position}")
        if isinstance(tensor, Tensor):
            builder.graph.shapes[names[-1]] = shape_of(tensor)
    return names if many else names[0]


def _outputs(builder: GraphBuilder, program: ExportedProgram) -> list[str]:
    """Say which values are given back; returns what is wrong with one of them."""
    graph, nodes = builder.graph, {node.name: node for node in program.graph.nodes}
    for spec in program.graph_signature.output_specs:
        name = getattr(spec.arg, "name", None)
        if name is None or not isinstance(builder[nodes[name]], str | Tensor):
            return [f"an output is {getattr(spec.arg, 'value', name)!r}: only tensors can be given back"]
        builder.node = nodes[name]
        value = builder.value(nodes[name])
        if value in graph.inputs or value in graph.outputs:
            value = builder.emit("identity", [value], graph.shapes[value])
        graph.outputs.append(value)
    return []
