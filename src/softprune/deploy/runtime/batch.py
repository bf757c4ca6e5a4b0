"""Whether the samples of a batch are independent, so that a large batch may run in parts."""

from __future__ import annotations

from softprune.deploy.runtime.graph import Op
from softprune.deploy.runtime.shape import Shape, infer
from softprune.deploy.runtime.spx import Model

# Any size that is unlikely to be a size of the network itself.
PROBE = 11


def splits(model: Model) -> bool:
    """Whether the first axis of every value that depends on an input is the batch, and no operation mixes it."""
    if any(shape[0] is not None for shape in model.graph.inputs.values()):
        return False
    try:
        shapes = infer(model.graph, model.weights, PROBE)
    except ValueError:
        return False
    batched = set(model.graph.inputs)
    for op in model.graph.ops:
        reads = [name for name in op.reads if name in batched]
        if not reads:
            continue
        if not _keeps(op, shapes, batched):
            return False
        batched.add(op.output)
    return all(name in batched for name in model.graph.outputs)


def _keeps(op: Op, shapes: dict[str, Shape], batched: set[str]) -> bool:
    """Whether an operation leaves the first axis alone."""
    shape, out, fields = shapes[op.inputs[0]], shapes[op.output], op.fields
    rank = len(shape)
    if (
        not out
        or out[0] != PROBE
        or any(not shapes[name] or shapes[name][0] != PROBE for name in op.reads if name in batched)
    ):
        return False
    if op.kind == "reshape":
        return bool(fields["shape"]) and fields["shape"][0] is None
    if op.kind == "permute":
        return fields["axes"][0] % rank == 0
    if op.kind in ("mean", "layer_norm"):
        return all(axis % rank for axis in fields["axes"])
    if op.kind in ("softmax", "concat", "slice"):
        return fields["axis"] % rank != 0 and all(name in batched for name in op.inputs)
    if op.kind in ("add", "mul"):
        return all(len(shapes[n]) == len(out) if n in batched else _spread(shapes[n], out) for n in op.inputs)
    if op.kind == "matmul":
        first, second = op.inputs
        return (
            first in batched
            and len(out) == rank
            and (rank > 2 or second not in batched)
            and (len(shapes[second]) == rank if second in batched else _spread(shapes[second], out))
        )
    if op.kind == "attention":
        mask = fields.get("mask")
        return rank > 2 and all(name in batched for name in op.inputs) and mask is None
    return op.kind != "linear" or rank > 1


def _spread(shape: Shape, out: Shape) -> bool:
    """Whether a constant is the same for all samples."""
    return len(shape) < len(out) or shape[0] == 1
