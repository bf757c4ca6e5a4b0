"""Halos: zeros around images, written anew where a buffer held something else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.runtime.builder import Builder
from softprune.deploy.runtime.geometry import Geometry
from softprune.deploy.runtime.grid import Grid
from softprune.deploy.runtime.program import Step
from softprune.deploy.runtime.records import Clear

Array = NDArray[np.float32]


class Halos:
    """Remembers when each grid with a halo begins to be used, and puts the clearing of its zeros there."""

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
        moved = []
        for place, step in enumerate(steps):
            merged += before.get(place, [])
            moved.append(len(merged))
            merged.append(step)
        steps[:] = merged
        return moved


def _step(buffer: Array, grid: Grid, filling: Geometry | None) -> Step:
    rows = [_written(grid, filling, plane) for plane in range(grid.planes)]
    written = np.array(rows, np.int32)
    sizes = (grid.margin, grid.plane, grid.image, grid.pitch, grid.channels, grid.planes, grid.images)
    record = Clear(buffer.ctypes.data, written.ctypes.data, *sizes)
    return Step("", "halo", record, [written, buffer])


def _written(grid: Grid, filling: Geometry | None, plane: int) -> tuple[int, int, int, int]:
    """First and last row and column that are written."""
    if filling is None:
        return grid.halo.top, grid.halo.top + grid.height, 0, grid.width
    rows, columns, _, _ = filling.source(filling.phases[plane])
    return grid.halo.top + rows.start, grid.halo.top + rows.stop, columns.start, columns.stop
