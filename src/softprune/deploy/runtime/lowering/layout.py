"""Operations that move elements: mostly views, sometimes copies."""

from __future__ import annotations

import numpy as np

from softprune.deploy.runtime.builder import Array, Builder
from softprune.deploy.runtime.graph import Op
from softprune.deploy.runtime.grid import view_as
from softprune.deploy.runtime.lowering.elementwise import COPY, add_maps, constant, copy, map_record


def lower_identity(b: Builder, op: Op) -> None:
    """The same place under another name."""
    source = op.inputs[0]
    b.arrays[op.output] = b.arrays[source]
    if source in b.grids:
        b.grids[op.output] = b.grids[source]


def reshaped(b: Builder, path: str, array: Array, shape: tuple[int, ...]) -> Array:
    """The array in another shape: a view where the strides allow it, else a copy that lives as long as needed."""
    view = view_as(array, shape)
    if view is not None:
        return view
    whole = b.arena.contiguous(array.shape)
    copy(b, path, whole, array)
    return whole.reshape(shape)


def lower_reshape(b: Builder, op: Op) -> None:
    """Another shape."""
    b.arrays[op.output] = reshaped(b, op.path, b.arrays[op.inputs[0]], b.shapes[op.output])


def lower_permute(b: Builder, op: Op) -> None:
    """Axes in another order: a view."""
    b.arrays[op.output] = b.arrays[op.inputs[0]].transpose(op.fields["axes"])


def lower_slice(b: Builder, op: Op) -> None:
    """Every step-th element along one axis: a view."""
    source = b.arrays[op.inputs[0]]
    index = [slice(None)] * source.ndim
    index[op.fields["axis"]] = slice(op.fields.get("start"), op.fields.get("stop"), op.fields["step"])
    b.arrays[op.output] = source[tuple(index)]


def lower_concat(b: Builder, op: Op) -> None:
    """One behind the other."""
    out, axis, records, begin = b.new(op.output), op.fields["axis"] % len(b.shapes[op.output]), [], 0
    for name in op.inputs:
        source = b.arrays[name]
        end = begin + source.shape[axis]
        part = out[tuple(slice(begin, end) if a == axis else slice(None) for a in range(out.ndim))]
        if part.size:
            records.append(map_record(b, COPY, part, [source]))
        begin = end
    add_maps(b, op.path, "concat", records)


def lower_pad(b: Builder, op: Op) -> None:
    """An image and what lies around it: nine parts, each a copy of a view of the image."""
    source, out, mode = b.arrays[op.inputs[0]], b.new(op.output), op.fields["mode"]
    top, bottom, left, right = op.fields["padding"]
    records = []
    for to_rows, from_rows in _stretches(source.shape[2], top, bottom, mode):
        for to_columns, from_columns in _stretches(source.shape[3], left, right, mode):
            part = out[:, :, to_rows, to_columns]
            if part.size:
                records.append(map_record(b, COPY, part, [source[:, :, from_rows, from_columns]]))
    add_maps(b, op.path, "pad", records)


def _stretches(size: int, before: int, behind: int, mode: str) -> list[tuple[slice, slice]]:
    """Where the front, the image and the back lie along one axis, and what is read there; one pixel is spread."""
    front, back = slice(0, before), slice(before + size, before + size + behind)
    if mode == "circular":
        sources = slice(size - before, size), slice(0, behind)
    elif mode == "replicate":
        sources = slice(0, 1), slice(size - 1, size)
    else:
        # Backwards from the pixel behind the edge; a stop of -1 would mean the last one.
        end = size - 2 - behind
        sources = slice(before, 0, -1), slice(size - 2, end if end >= 0 else None, -1)
    return [(front, sources[0]), (slice(before, before + size), slice(0, size)), (back, sources[1])]


def lower_constant(b: Builder, op: Op) -> None:
    """A weight as a value."""
    b.arrays[op.output] = constant(b, np.array(b.weights[op.fields["weight"]].dense()))
