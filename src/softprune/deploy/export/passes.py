"""Making a graph smaller without changing what it computes."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.format.graph import Array, Graph, Op
from softprune.deploy.format.operations import FUSED, LAYERS

# What reads each value.
Users = dict[str, list[Op]]


def simplify(graph: Graph) -> Graph:
    """Fold norms, fuse residuals and activations, join moves, drop what nobody reads; in place."""
    drop_unused(graph)
    join_moves(graph)
    lift_over_reshapes(graph)
    fold_scale_shift(graph)
    fuse_residuals(graph)
    fuse_activations(graph)
    drop_unused(graph)
    return rename_weights(graph)


def _producers(graph: Graph) -> dict[str, Op]:
    return {op.output: op for op in graph.ops}


def _read_once(graph: Graph, name: str, users: Users) -> bool:
    return len(users.get(name, [])) == 1 and name not in graph.outputs


def _layer_for(graph: Graph, name: str, producers: dict[str, Op], users: Users) -> Op | None:
    """The layer that makes a value, if it may make another in its place."""
    layer = producers.get(name)
    return layer if layer is not None and layer.kind in LAYERS and _read_once(graph, name, users) else None


def drop_unused(graph: Graph) -> None:
    """Remove operations and weights that no output needs."""
    needed = set(graph.outputs)
    kept = []
    for op in reversed(graph.ops):
        if op.output in needed:
            kept.append(op)
            needed.update(op.reads)
    graph.ops = kept[::-1]
    named = {name for op in graph.ops for _, name in op.weight_names()}
    graph.weights = {name: array for name, array in graph.weights.items() if name in named}


def join_moves(graph: Graph) -> None:
    """Two reshapes or two permutations in a row are one; those that move nothing are none."""
    made: dict[str, Op] = {}
    for op in list(graph.ops):
        before = made.get(op.inputs[0]) if op.inputs else None
        if op.kind == "reshape" and before is not None and before.kind == "reshape":
            op.inputs = list(before.inputs)
        if op.kind == "permute" and before is not None and before.kind == "permute":
            op.fields["axes"] = [before.fields["axes"][axis] for axis in op.fields["axes"]]
            op.inputs = list(before.inputs)
        made[op.output] = op
        if _moves_nothing(graph, op) and op.output not in graph.outputs:
            graph.replace(op.output, op.inputs[0])
            graph.ops.remove(op)
    drop_unused(graph)


def _moves_nothing(graph: Graph, op: Op) -> bool:
    if op.kind == "permute":
        return op.fields["axes"] == list(range(len(op.fields["axes"])))
    return op.kind == "reshape" and graph.shapes[op.inputs[0]] == graph.shapes[op.output]


def lift_over_reshapes(graph: Graph) -> None:
    """Let norms and activations come before a reshape, where a layer may take them in."""
    for position, op in enumerate(graph.ops):
        if op.kind not in (*FUSED, "scale_shift"):
            continue
        move = _producers(graph).get(op.inputs[0])
        if move is None or move.kind != "reshape" or not _read_once(graph, move.output, graph.users()):
            continue
        before, after = graph.shapes[move.inputs[0]], graph.shapes[move.output]
        # Channels must be axis 1 on both sides.
        if op.kind == "scale_shift" and (before[:2] != after[:2] or len(before) < 2):
            continue
        graph.ops[graph.ops.index(move)], graph.ops[position] = op, move
        op.inputs, move.inputs = list(move.inputs), [move.output]
        op.output, move.output = move.output, op.output
        graph.shapes[op.output] = before


def fold_scale_shift(graph: Graph) -> None:
    """Take a scale and shift per channel into the weights of the layer in front of it."""
    producers, users = _producers(graph), graph.users()
    for op in [op for op in graph.ops if op.kind == "scale_shift"]:
        layer = _layer_for(graph, op.inputs[0], producers, users)
        # The channels of a linear layer are its last axis, and that is axis 1 of matrices alone.
        if layer is not None and (layer.kind != "linear" or len(graph.shapes[layer.output]) == 2):
            _fold(graph, layer, graph.weights[op.fields["scale"]], graph.weights[op.fields["shift"]])
            _take_over(graph, layer, op, producers)


def _fold(graph: Graph, layer: Op, scale: Array, shift: Array) -> None:
    weight = graph.weights[layer.fields["weight"]].astype(np.float64)
    if layer.kind == "conv_transpose2d":
        # (inputs, outputs / groups, ...): the outputs of a group stand in the second axis.
        per_group = scale.reshape(layer.fields["groups"], -1)
        inputs = weight.shape[0] // layer.fields["groups"]
        folded = weight * np.repeat(per_group, inputs, axis=0)[:, :, None, None]
    else:
        folded = weight * scale.reshape(-1, *(1,) * (weight.ndim - 1))
    bias = shift.astype(np.float64)
    if layer.fields["bias"] is not None:
        bias = bias + graph.weights[layer.fields["bias"]] * scale.astype(np.float64)
    # Other layers may share the weights: the folded ones get names of their own.
    for key, array in (("weight", folded), ("bias", bias)):
        name = f"{layer.output}.{key}.{len(graph.weights)}"
        graph.weights[name] = array.astype(np.float32)
        layer.fields[key] = name


def _take_over(graph: Graph, layer: Op, op: Op, producers: dict[str, Op]) -> None:
    """Let the layer make what ``op`` made, in its place."""
    graph.ops.remove(layer)
    graph.ops[graph.ops.index(op)] = layer
    del producers[layer.output]
    layer.output = op.output
    producers[op.output] = layer


def fuse_residuals(graph: Graph) -> None:
    """Let a layer add the other summand of a sum that reads it and nothing else does."""
    producers, users = _producers(graph), graph.users()
    for op in [op for op in graph.ops if op.kind == "add"]:
        if len(set(op.inputs)) != 2 or graph.shapes[op.inputs[0]] != graph.shapes[op.inputs[1]]:
            continue
        for name, other in (op.inputs, op.inputs[::-1]):
            layer = _layer_for(graph, name, producers, users)
            if layer is not None and layer.fields["residual"] is None and layer.fields["activation"] is None:
                layer.fields["residual"] = other
                _take_over(graph, layer, op, producers)
                users = graph.users()
                break


def fuse_activations(graph: Graph) -> None:
    """Let a layer apply the activation that reads it and nothing else does."""
    producers, users = _producers(graph), graph.users()
    for op in [op for op in graph.ops if op.kind in FUSED]:
        layer = _layer_for(graph, op.inputs[0], producers, users)
        # The tanh approximation of GELU is an operation of its own in the format.
        exact = op.fields.get("approximate", "none") == "none"
        if layer is not None and exact and layer.fields["activation"] is None:
            layer.fields["activation"] = op.kind
            _take_over(graph, layer, op, producers)


def rename_weights(graph: Graph) -> Graph:
    """Number weights and values in the order in which they are used; equal weights become one."""
    names: dict[str, str] = {}
    found: dict[tuple[tuple[int, ...], str, str], str] = {}
    weights: dict[str, NDArray[Any]] = {}
    for position, op in enumerate(graph.ops):
        for key, old in op.weight_names():
            if old not in names:
                array = graph.weights[old]
                content = array.shape, array.dtype.str, sha256(array.data if array.size else b"").hexdigest()
                names[old] = found.setdefault(content, f"w{len(found)}")
                weights[names[old]] = array
            op.fields[key] = names[old]
        value = f"v{position}"
        graph.replace(op.output, value)
        graph.shapes[value] = graph.shapes.pop(op.output)
        op.output = value
    graph.weights = weights
    return graph
