"""From a captured program to a graph of the format's operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from softprune.channels.program import module_path
from softprune.deploy.export.graph import Graph
from softprune.deploy.export.lowering import Everyone, Lowering, UnsupportedError, shape_of
from softprune.deploy.export.rules import RULES


def lower(program: ExportedProgram) -> Graph:
    """The program in the operations of the format, one for one; passes make it smaller later.

    Raises:
        ValueError: that names everything that cannot be expressed, with its place in the module.
    """
    lowering = Lowering()
    faults = _declare(lowering, program)
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        lowering.begin(node)
        try:
            _lower_node(lowering, node)
        except UnsupportedError as error:
            faults.append(f"{module_path(node) or 'the module itself'}: {node.target} ({error})")
            lowering.define(node, _stand_in(lowering, node))
    if not faults:
        faults = _outputs(lowering, program)
    if faults:
        raise ValueError(
            "these operations are not in the format, and nothing was written:\n  " + "\n  ".join(dict.fromkeys(faults))
        )
    return lowering.graph


def _declare(lowering: Lowering, program: ExportedProgram) -> list[str]:
    """Tell what each placeholder is."""
    faults = []
    held = {**program.state_dict, **program.constants}
    places = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        node = places[getattr(spec.arg, "name", "")]
        if spec.kind != InputKind.USER_INPUT:
            lowering.define(node, held.get(spec.target) if spec.target is not None else None)
            continue
        name = f"x{len(lowering.graph.inputs)}"
        shape = lowering.shape(node) if isinstance(node.meta.get("val"), Tensor) else ()
        if not shape or isinstance(shape[0], int) or not all(isinstance(size, int) for size in shape[1:]):
            faults.append(f"input {node.name} has shape {shape}: only its first size may vary, and it must")
            continue
        lowering.batch = str(shape[0])
        lowering.graph.inputs[name] = (None, *(int(size) for size in shape[1:]))
        lowering.graph.shapes[name] = shape
        lowering.define(node, name)
    for spec in program.graph_signature.output_specs:
        if spec.kind != OutputKind.USER_OUTPUT:
            faults.append(f"{spec.target} is changed by forward: only networks without a memory can be exported")
    return faults


def _lower_node(lowering: Lowering, node: Node) -> None:
    made = node.meta.get("val")
    if not isinstance(made, Tensor | list | tuple):
        # Sizes of the batch and checks of them: shapes are read from the tensors themselves.
        lowering.define(node, None)
        return
    if _is_constant(lowering, node):
        lowering.define(node, _evaluate(lowering, node))
        return
    if str(node.target) == "aten.expand.default" and isinstance(made, Tensor) and made.dtype != torch.float32:
        lowering.define(node, _for_everyone(lowering, node))
        return
    rule = RULES.get(str(node.target))
    if rule is None:
        raise UnsupportedError("unknown to the format")
    if isinstance(made, Tensor) and made.dtype != torch.float32:
        raise UnsupportedError(f"makes {made.dtype}, and all values are float32")
    lowering.define(node, rule(lowering, *node.args, **node.kwargs))


def _for_everyone(lowering: Lowering, node: Node) -> Everyone:
    """A constant mask before it is expanded to the batch."""
    found = lowering[node.args[0]]
    shape = [size if isinstance(size, int) else 1 for size in lowering.shape(node)]
    if not isinstance(found, Tensor):
        raise UnsupportedError(f"makes {node.meta['val'].dtype}, and all values are float32")
    return Everyone(found.expand(shape))


def _is_constant(lowering: Lowering, node: Node) -> bool:
    """Whether no input reaches this node, not even through the size of the batch."""
    if any(not isinstance(lowering[n], Tensor | list) for n in node.all_input_nodes):
        return False
    return not any(isinstance(part, str) for n in node.all_input_nodes for part in _flat(lowering[n]))


def _flat(what: Any) -> list[Any]:
    return [part for item in what for part in _flat(item)] if isinstance(what, list) else [what]


@torch.no_grad()
def _evaluate(lowering: Lowering, node: Node) -> Any:
    made = node.target(*lowering[node.args], **{key: lowering[value] for key, value in node.kwargs.items()})  # type: ignore[operator]
    return list(made) if isinstance(made, tuple) else made


def _stand_in(lowering: Lowering, node: Node) -> Any:
    """Something in the place of a value that cannot be made, so that the faults behind it are found too."""
    made = node.meta.get("val")
    tensors = made if isinstance(made, list | tuple) else [made]
    names = [f"missing_{node.name}_{position}" for position in range(len(tensors))]
    for name, tensor in zip(names, tensors, strict=True):
        if isinstance(tensor, Tensor):
            lowering.graph.shapes[name] = shape_of(tensor)
    return names if isinstance(made, list | tuple) else names[0]


def _outputs(lowering: Lowering, program: ExportedProgram) -> list[str]:
    names = {node.name: node for node in program.graph.nodes}
    for spec in program.graph_signature.output_specs:
        name = getattr(spec.arg, "name", None)
        if name is None or not isinstance(lowering[names[name]], str | Tensor):
            return [f"an output is {getattr(spec.arg, 'value', name)!r}: only tensors can be given back"]
        lowering.begin(names[name])
        value = lowering.value(lowering[names[name]])
        if value in lowering.graph.inputs or value in lowering.graph.outputs:
            value = lowering.emit("identity", [value], lowering.graph.shapes[value])
        lowering.graph.outputs.append(value)
    return []
