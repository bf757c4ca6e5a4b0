"""Planning: a program for one batch size from a checked model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from softprune.deploy.engine import conv, elementwise, int8_layers, int8_moves, linear, reduction
from softprune.deploy.engine.execution import Step, chains
from softprune.deploy.engine.grid import Geometry, Grid
from softprune.deploy.engine.int8_layout import plan_layouts
from softprune.deploy.engine.library import Clear, KernelLibrary
from softprune.deploy.engine.memory import Arena, Builder
from softprune.deploy.format.graph import Array, Op
from softprune.deploy.format.operations import infer
from softprune.deploy.format.spx import Model
from softprune.deploy.format.value_kinds import infer_kinds


def _lower_conv2d(b: Builder, op: Op) -> None:
    """A convolution; on images of one pixel it is a linear layer."""
    kernel = b.weights[op.fields["weight"]].shape[2:]
    ones = (*b.shapes[op.inputs[0]][2:], *kernel, *op.fields["stride"], op.fields["groups"])
    pixel = set(ones) == {1} and set(op.fields["padding"]) == {0} and 0 not in b.shapes[op.output]
    (linear.lower_pixel if pixel else conv.lower_conv)(b, op)


# Operation of the format -> appends its steps to the program.
LOWERING: dict[str, Callable[[Builder, Op], None]] = {
    "conv2d": _lower_conv2d,
    "conv_transpose2d": conv.lower_conv_transpose,
    "linear": linear.lower_linear,
    "matmul": linear.lower_matmul,
    "attention": linear.lower_attention,
    "max_pool2d": reduction.lower_pool,
    "avg_pool2d": reduction.lower_pool,
    "adaptive_avg_pool2d": reduction.lower_adaptive,
    "resize": reduction.lower_resize,
    "mean": reduction.lower_mean,
    "softmax": reduction.lower_softmax,
    "layer_norm": reduction.lower_layer_norm,
    "add": elementwise.lower_binary,
    "mul": elementwise.lower_binary,
    "scale_shift": elementwise.lower_scale_shift,
    "concat": elementwise.lower_concat,
    "reshape": elementwise.lower_reshape,
    "permute": elementwise.lower_permute,
    "slice": elementwise.lower_slice,
    "pad": elementwise.lower_pad,
    "constant": elementwise.lower_constant,
    "identity": elementwise.lower_identity,
    **dict.fromkeys(
        ("relu", "relu6", "hardswish", "hardsigmoid", "silu", "sigmoid", "tanh", "mish", "elu", "softplus", "gelu"),
        elementwise.lower_activation,
    ),
    "quantize": int8_moves.lower_quantize,
    "dequantize": int8_moves.lower_dequantize,
    "lookup": int8_moves.lower_lookup,
    "conv2d_int8": int8_layers.lower_conv,
    "linear_int8": int8_layers.lower_linear,
}
# The same for those that also read bytes.
LOWERING8: dict[str, Callable[[Builder, Op], None]] = {
    "identity": int8_moves.lower_identity,
    "reshape": int8_moves.lower_reshape,
    "permute": int8_moves.lower_permute,
    "slice": int8_moves.lower_slice,
    "concat": int8_moves.lower_concat,
    "max_pool2d": int8_moves.lower_max_pool,
    "mean": int8_moves.lower_mean,
    "adaptive_avg_pool2d": int8_moves.lower_mean,
}


class HaloClearing:
    """Steps that write the zeros around images anew, before the first use of a buffer that held something else."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._begin = 0
        # Step, buffer, grid, filling.
        self._noted: list[tuple[int, Array, Grid, Geometry | None]] = []

    def note(self) -> None:
        """An operation, or a chain of them, has been lowered: its grids are cleared before its first step.

        Nothing is given back inside of a chain, so what it uses was free when it began.
        """
        grids = self._builder.arena.grids
        self._noted += [(self._begin, *entry) for entry in grids[len(self._noted) :]]
        self._begin = len(self._builder.program.steps)

    def insert(self) -> list[int]:
        """Add the steps that are needed; where each old step is now."""
        steps, arena = self._builder.program.steps, self._builder.arena
        before: dict[int, list[Step]] = {}
        for place, buffer, grid, filling in self._noted:
            # A buffer that never holds anything else stays zero where it was zero when it was made.
            if arena.shared(buffer):
                before.setdefault(place, []).append(_step(buffer, grid, filling))
        merged: list[Step] = []
        moved: list[int] = []
        for place, step in enumerate(steps):
            merged += before.get(place, [])
            moved.append(len(merged))
            merged.append(step)
        steps[:] = merged
        return moved


def _step(buffer: Array, grid: Grid, filling: Geometry | None) -> Step:
    """A step that clears all of a grid but what is written: first and last row and column, for each plane."""
    top = grid.halo.top
    rows = [(top, top + grid.height, 0, grid.width)] * grid.planes
    if filling is not None:
        parts = [filling.source(filling.phases[plane])[:2] for plane in range(grid.planes)]
        rows = [(top + down.start, top + down.stop, across.start, across.stop) for down, across in parts]
    written = np.array(rows, np.int32)
    sizes = (grid.margin, grid.plane, grid.image, grid.pitch, grid.channels, grid.planes, grid.images)
    return Step("", "halo", Clear(buffer.ctypes.data, written.ctypes.data, *sizes), [written, buffer])


def build(model: Model, library: KernelLibrary, *, batch: int, threads: int) -> Builder:
    """Lower every operation; inputs are the first slots, outputs the following ones."""
    graph = model.graph
    shapes, kinds = infer(graph, model.weights, batch), infer_kinds(graph, model.weights)
    builder = Builder(library, threads, graph, model.weights, shapes, Arena(library))
    builder.layouts = plan_layouts(graph, shapes, kinds, model.weights)
    conv.collect_halos(builder)
    for number, name in enumerate(graph.inputs):
        builder.arrays[name] = builder.arena.slot(number, shapes[name])
    last = graph.last_reads()
    found = chains(graph, [conv.reads_producer(builder, op) for op in graph.ops])
    inner = {place for chain in found for place in chain[:-1]}
    begins: dict[int, int] = {}
    pending: set[str] = set()
    halos = HaloClearing(builder)
    for place, op in enumerate(graph.ops):
        reads_bytes = op.kind in LOWERING8 and op.inputs[0] in builder.values8
        (LOWERING8 if reads_bytes else LOWERING)[op.kind](builder, op)
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
        if steps.start < 0:
            continue  # images without a pixel need no step
        kernels = [builder.program.steps[i].kernel for i in steps]
        if len(steps) == len(chain) and all(kernel is not None and kernel.runs_in_bands for kernel in kernels):
            builder.program.chains.append(steps)


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
    done = [builder.values8.pop(name) for name in names if last[name] <= place and name in builder.values8]
    for value in done:
        if not any(value.buffer is other.buffer for other in builder.values8.values()):
            builder.bytes.give_back(value.key, value.buffer)
