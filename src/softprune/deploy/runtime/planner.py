"""Planning: a program for one batch size from a checked model."""

from __future__ import annotations

from collections.abc import Callable

from softprune.deploy.runtime.arena import Arena
from softprune.deploy.runtime.builder import Builder
from softprune.deploy.runtime.depthwise import DepthwiseSite
from softprune.deploy.runtime.graph import Graph, Op
from softprune.deploy.runtime.halos import Halos
from softprune.deploy.runtime.library import Library
from softprune.deploy.runtime.lowering import convolution, elementwise, image, layout, product, reduction
from softprune.deploy.runtime.shape import infer
from softprune.deploy.runtime.site import Scratch, Site
from softprune.deploy.runtime.spx import Model
from softprune.deploy.runtime.wavefront import chains

LOWERING: dict[str, Callable[[Builder, Op], None]] = {
    "conv2d": product.lower_conv2d,
    "conv_transpose2d": convolution.lower_conv_transpose,
    "linear": product.lower_linear,
    "matmul": product.lower_matmul,
    "attention": product.lower_attention,
    "max_pool2d": image.lower_pool,
    "avg_pool2d": image.lower_pool,
    "adaptive_avg_pool2d": image.lower_adaptive,
    "resize": image.lower_resize,
    "mean": reduction.lower_mean,
    "softmax": reduction.lower_softmax,
    "layer_norm": reduction.lower_layer_norm,
    "add": elementwise.lower_binary,
    "mul": elementwise.lower_binary,
    "scale_shift": elementwise.lower_scale_shift,
    "concat": layout.lower_concat,
    "reshape": layout.lower_reshape,
    "permute": layout.lower_permute,
    "slice": layout.lower_slice,
    "pad": layout.lower_pad,
    "constant": layout.lower_constant,
    "identity": layout.lower_identity,
}


def build(model: Model, library: Library, *, batch: int, threads: int) -> Builder:
    """Lower every operation; inputs are the first slots, outputs the following ones.

    Raises:
        ValueError: if shapes do not fit together or are too large.
        MemoryError: if there is no room for the buffers.
    """
    graph = model.graph
    shapes = infer(graph, model.weights, batch)
    builder = Builder(library, threads, graph, model.weights, shapes, Arena(library), Scratch(library))
    builder.collect_wishes()
    for number, name in enumerate(graph.inputs):
        builder.arrays[name] = builder.arena.slot(number, shapes[name])
    last = _last_reads(graph)
    found = chains(graph, [builder.reads_producer(op) for op in graph.ops])
    inner = {place for chain in found for place in chain[:-1]}
    begins: dict[int, int] = {}
    pending: set[str] = set()
    halos = Halos(builder)
    for place, op in enumerate(graph.ops):
        LOWERING.get(op.kind, elementwise.lower_activation)(builder, op)
        begins[place] = len(builder.program.steps) - 1
        pending |= {*op.reads, op.output}
        # In a wavefront the first convolution still reads its input while the last one writes its output.
        if place not in inner:
            halos.note()
            builder.end_op()
            _release(builder, pending, last, place)
            pending = set()
    moved = halos.insert()
    _mark_chains(builder, found, {place: moved[step] if step >= 0 else -1 for place, step in begins.items()})
    for number, name in enumerate(graph.outputs):
        slot = builder.arena.slot(len(graph.inputs) + number, shapes[name])
        elementwise.copy(builder, "", slot, builder.arrays[name], "output")
    return builder


def _mark_chains(builder: Builder, found: list[range], ends: dict[int, int]) -> None:
    """Tell the program which of its steps form chains: those with nothing in between."""
    for chain in found:
        steps = range(ends[chain.start], ends[chain.stop - 1] + 1)
        if len(steps) != len(chain):
            continue
        if all(isinstance(builder.program.steps[i].site, Site | DepthwiseSite) for i in steps):
            builder.program.chains.append(steps)


def _last_reads(graph: Graph) -> dict[str, int]:
    """The last operation that reads each value; outputs are read at the end."""
    last = {op.output: place for place, op in enumerate(graph.ops)}
    for place, op in enumerate(graph.ops):
        last.update(dict.fromkeys(op.reads, place))
    last.update(dict.fromkeys(graph.outputs, len(graph.ops)))
    return last


def _release(builder: Builder, names: set[str], last: dict[str, int], place: int) -> None:
    """Give back the buffers of values that nobody will read; several values may share one."""
    dead = [name for name in names if last[name] <= place and name in builder.arrays]
    arrays = [builder.arrays.pop(name) for name in dead]
    for array in arrays:
        if not array.size:
            continue
        buffer = builder.arena.owner(array)
        if not any(other.size and builder.arena.owner(other) is buffer for other in builder.arrays.values()):
            builder.arena.release(array)
    for name in dead:
        builder.grids.pop(name, None)
