"""From a captured program to a graph of the format's operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from softprune.deploy.export.graph_builder import Everyone, GraphBuilder, UnsupportedError, shape_of
from softprune.deploy.export.rules import RULES
from softprune.deploy.format.graph import Graph
from softprune.structure.program import module_path


def translate(program: ExportedProgram) -> Graph:
    """The program in the operations of the format, one for one; passes make it smaller later.

    Raises:
        ValueError: that names everything that cannot be expressed, with its place in the module.
    """
    builder = GraphBuilder()
    faults = _declare(builder, program)
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        builder.begin(node)
        try:
            _translate_node(builder, node)
        except UnsupportedError as error:
            faults.append(f"{module_path(node) or 'the module itself'}: {node.target} ({error})")
            builder.define(node, _stand_in(builder, node))
    if not faults:
        faults = _outputs(builder, program)
    if faults:
        raise ValueError(
            "these operations are not in the format, and nothing was written:\n  " + "\n  ".join(dict.fromkeys(faults))
        )
    return builder.graph


def _declare(builder: GraphBuilder, program: ExportedProgram) -> list[str]:
    """Tell what each placeholder is."""
    faults = []
    held = {**program.state_dict, **program.constants}
    places = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        node = places[getattr(spec.arg, "name", "")]
        if spec.kind != InputKind.USER_INPUT:
            builder.define(node, held.get(spec.target) if spec.target is not None else None)
            continue
        name = f"x{len(builder.graph.inputs)}"
        shape = builder.shape(node) if isinstance(node.meta.get("val"), Tensor) else ()
        if not shape or isinstance(shape[0], int) or not all(isinstance(size, int) for size in shape[1:]):
            faults.append(f"input {node.name} has shape {shape}: only its first size may vary, and it must")
            continue
        builder.batch = str(shape[0])
        builder.graph.inputs[name] = (None, *(int(size) for size in shape[1:]))
        builder.graph.shapes[name] = shape
        builder.define(node, name)
    for spec in program.graph_signature.output_specs:
        if spec.kind != OutputKind.USER_OUTPUT:
            faults.append(f"{spec.target} is changed by forward: only networks without a memory can be exported")
    return faults


def _translate_node(builder: GraphBuilder, node: Node) -> None:
    made = node.meta.get("val")
    if not isinstance(made, Tensor | list | tuple):
        # Sizes of the batch and checks of them: shapes are read from the tensors themselves.
        builder.define(node, None)
        return
    if _is_constant(builder, node):
        builder.define(node, _evaluate(builder, node))
        return
    if str(node.target) == "aten.expand.default" and isinstance(made, Tensor) and made.dtype != torch.float32:
        builder.define(node, _for_everyone(builder, node))
        return
    rule = RULES.get(str(node.target))
    if rule is None:
        raise UnsupportedError("unknown to the format")
    if isinstance(made, Tensor) and made.dtype != torch.float32:
        raise UnsupportedError(f"makes {made.dtype}, and all values are float32")
    builder.define(node, rule(builder, *node.args, **node.kwargs))


def _for_everyone(builder: GraphBuilder, node: Node) -> Everyone:
    """A constant mask before it is expanded to the batch."""
    found = builder[node.args[0]]
    shape = [size if isinstance(size, int) else 1 for size in builder.shape(node)]
    if not isinstance(found, Tensor):
        raise UnsupportedError(f"makes {node.meta['val'].dtype}, and all values are float32")
    return Everyone(found.expand(shape))


def _is_constant(builder: GraphBuilder, node: Node) -> bool:
    """Whether no input reaches this node, not even through the size of the batch."""
    if any(not isinstance(builder[n], Tensor | list) for n in node.all_input_nodes):
        return False
    return not any(isinstance(part, str) for n in node.all_input_nodes for part in _flat(builder[n]))


def _flat(what: Any) -> list[Any]:
    return [part for item in what for part in _flat(item)] if isinstance(what, list) else [what]


@torch.no_grad()
def _evaluate(builder: GraphBuilder, node: Node) -> Any:
    made = node.target(*builder[node.args], **{key: builder[value] for key, value in node.kwargs.items()})  # type: ignore[operator]
    return list(made) if isinstance(made, tuple) else made


def _stand_in(builder: GraphBuilder, node: Node) -> Any:
    """Something in the place of a value that cannot be made, so that the faults behind it are found too."""
    made = node.meta.get("val")
    tensors = made if isinstance(made, list | tuple) else [made]
    names = [f"missing_{node.name}_{position}" for position in range(len(tensors))]
    for name, tensor in zip(names, tensors, strict=True):
        if isinstance(tensor, Tensor):
            builder.graph.shapes[name] = shape_of(tensor)
    return names if isinstance(made, list | tuple) else names[0]


def _outputs(builder: GraphBuilder, program: ExportedProgram) -> list[str]:
    names = {node.name: node for node in program.graph.nodes}
    for spec in program.graph_signature.output_specs:
        name = getattr(spec.arg, "name", None)
        if name is None or not isinstance(builder[names[name]], str | Tensor):
            return [f"an output is {getattr(spec.arg, 'value', name)!r}: only tensors can be given back"]
        builder.begin(names[name])
        value = builder.value(builder[names[name]])
        if value in builder.graph.inputs or value in builder.graph.outputs:
            value = builder.emit("identity", [value], builder.graph.shapes[value])
        builder.graph.outputs.append(value)
    return []
