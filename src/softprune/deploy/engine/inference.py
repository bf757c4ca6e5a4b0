"""Engine: a loaded network that can be called."""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from softprune.deploy.engine.execution import Executable, Team
from softprune.deploy.engine.library import KernelLibrary, library
from softprune.deploy.engine.memory import Builder, MemoryUse, measure_memory
from softprune.deploy.engine.planner import build
from softprune.deploy.engine.tune import Tuner, recall, remember, tuning_key
from softprune.deploy.format.graph import Array
from softprune.deploy.format.operations import infer, splits
from softprune.deploy.format.shapes import Shape
from softprune.deploy.format.spx import Model, read_spx

# Plans that an engine keeps; a caller with many batch sizes makes more.
MAX_PLANS = 8
# Floats of the largest value when several samples run together; more would leave the caches.
CHUNK_FLOATS = 1 << 17


class KernelWarning(UserWarning):
    """The compiled kernels are missing, so the slow reference engine runs."""


def load(path: str | Path, *, threads: int | None = None, tune: bool = True) -> Engine:
    """Load a network for inference.

    Args:
        path: a .spx file; it may come from anywhere, nothing in it is trusted.
        threads: threads to use; None takes all cores that this process may use.
        tune: whether the first call with a batch size measures the fastest way to compute each layer. The result is
            kept in the user's cache folder. False takes defaults that are good everywhere.

    Returns:
        An engine: call it with one array per input.

    Raises:
        OSError: if the file cannot be read.
        TypeError: if threads is not a whole number.
        ValueError: if the file is not a valid network, or threads is not 1 to 256.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if isinstance(threads, bool) or not isinstance(threads, int | np.integer | None):
        raise TypeError(f"threads is {threads!r}, must be a whole number from 1 to 256, or None for all cores")
    count = cores if threads is None else int(threads)
    if not 1 <= count <= 256:
        raise ValueError(f"threads is {threads}, must be 1 to 256")
    model = read_spx(path)
    kernels = library()
    if kernels is None:
        warnings.warn(
            "the compiled kernels are missing: the slow reference engine runs. With a C++ compiler installed, "
            "`python -m softprune.deploy.engine.build` makes them",
            KernelWarning,
            stacklevel=2,
        )
    return Engine(model, kernels, threads=count, tune=tune)


class _Local:
    """What belongs to one process: a forked one has none of the threads, and the lock may be taken for ever."""

    def __init__(self, kernels: KernelLibrary | None, threads: int) -> None:
        self.lock = threading.Lock()
        self.team = Team(kernels, threads) if kernels else None
        self.plans: dict[int, Executable] = {}
        self.builders: dict[int, Builder] = {}  # they own the buffers


class Engine:
    """A network that can be called with NumPy arrays or CPU tensors; several threads may call it."""

    def __init__(self, model: Model, kernels: KernelLibrary | None, *, threads: int, tune: bool) -> None:
        self.model, self.threads = model, threads
        self._kernels, self._tune = kernels, tune
        self._locals = {os.getpid(): _Local(kernels, threads)}
        self._splits = splits(model.graph, model.weights)
        self._dense: dict[str, Array] = {}
        self._shapes: dict[int, dict[str, Shape]] = {}
        shapes = self.shapes(1)  # refuses at once what could never run
        largest = max(math.prod(shapes[op.output]) for op in model.graph.ops) if model.graph.ops else 1
        self._chunk = max(1, CHUNK_FLOATS // max(1, largest))

    @property
    def level(self) -> str:
        """The instruction set: "avx512", "avx2", "portable", or "reference" without compiled kernels."""
        return self._kernels.facts.level if self._kernels else "reference"

    @property
    def team(self) -> Team | None:
        """The threads of this process; None without compiled kernels."""
        return self._local().team

    def _local(self) -> _Local:
        """The team, the lock and the plans of this process; everything that uses one of them asks here."""
        here = os.getpid()
        found = self._locals.get(here)
        if found is None:
            # Of two threads that come at once one is the first: setdefault() gives both what that one made.
            found = self._locals.setdefault(here, _Local(self._kernels, self.threads))
            for process in [process for process in self._locals if process != here]:
                self._locals.pop(process, None)
        return found

    def __call__(self, *inputs: Any) -> Any:
        """Compute the outputs.

        Args:
            inputs: float32 arrays or CPU tensors of the shapes of the network's inputs; the batch is free.

        Returns:
            The output as a NumPy array; a tuple if there are several.

        Raises:
            TypeError: if an input is not float32, or not an array or tensor in the memory of the CPU.
            ValueError: if the number or a shape of the inputs is wrong.
        """
        outputs = self._run(self._checked(inputs))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def plan(self, batch: int) -> Executable:
        """The plan for a batch size that runs at once; made and tuned when it is first asked for."""
        local = self._local()
        with local.lock:
            return self._plan(local, batch)

    def _plan(self, local: _Local, batch: int) -> Executable:
        """The plan, for a caller that holds the lock."""
        assert self._kernels is not None and local.team is not None
        if batch not in local.plans:
            if len(local.plans) >= MAX_PLANS:
                oldest = next(iter(local.plans))
                del local.plans[oldest], local.builders[oldest]
            builder = build(self.model, self._kernels, batch=batch, threads=self.threads)
            if self._tune:
                levels = {"level": self.level, "integers": self._kernels.facts.integer_level}
                name = tuning_key(model=self.model.digest, **levels, batch=batch, threads=self.threads)
                if not recall(builder.program, name):
                    slots = self.slots(batch)
                    Tuner(self._kernels, local.team, builder.program).run([array.ctypes.data for array in slots])
                    remember(builder.program, name)
            builder.arena.share_scratch(builder.program)
            local.plans[batch] = Executable(self._kernels, local.team, builder.program)
            local.builders[batch] = builder
        return local.plans[batch]

    def memory(self, batch: int = 1) -> MemoryUse:
        """What the engine holds to run a batch of this size; a large one runs in parts, of which the largest counts."""
        if self._kernels is None:
            raise RuntimeError("the reference engine keeps no account of its memory: build the kernels first")
        count = min(batch, self._chunk) if self._splits else batch
        local = self._local()
        with local.lock:
            self._plan(local, count)
            return measure_memory(local.builders[count], held=self.model.file.held)

    def shapes(self, batch: int) -> dict[str, Shape]:
        """The shapes of all values at a batch size."""
        found = self._shapes.get(batch)
        if found is None:
            found = infer(self.model.graph, self.model.weights, batch)
            if len(self._shapes) >= MAX_PLANS:
                self._shapes = {}
            self._shapes[batch] = found
        return found

    def slots(self, batch: int) -> list[Array]:
        """Arrays of zeros in the place of inputs and outputs."""
        shapes = self.shapes(batch)
        return [np.zeros(shapes[name], np.float32) for name in (*self.model.graph.inputs, *self.model.graph.outputs)]

    def _run(self, arrays: list[Array]) -> list[Array]:
        graph, batch = self.model.graph, self._batch(arrays)
        shapes = self.shapes(batch)
        if self._kernels is None:
            return self._reference(arrays)
        outputs = [np.empty(shapes[name], np.float32) for name in graph.outputs]
        local = self._local()
        with local.lock:
            if not self._splits:
                self._plan(local, batch).run([a.ctypes.data for a in (*arrays, *outputs)])
                return outputs
            for first in range(0, batch, self._chunk):
                count = min(self._chunk, batch - first)
                parts = [a[first : first + count] for a in (*arrays, *outputs)]
                self._plan(local, count).run([a.ctypes.data for a in parts])
        return outputs

    def _reference(self, arrays: list[Array]) -> list[Array]:
        from softprune.deploy.format.reference import run

        with self._local().lock:
            if not self._dense:
                self._dense = {name: weight.dense() for name, weight in self.model.weights.items()}
        return run(self.model.graph.document, self._dense, arrays)

    def _checked(self, inputs: Sequence[Any]) -> list[Array]:
        declared = self.model.graph.inputs
        if len(inputs) != len(declared):
            raise ValueError(f"the network takes {len(declared)} inputs ({', '.join(declared)}), got {len(inputs)}")
        return [_array(name, shape, x) for (name, shape), x in zip(declared.items(), inputs, strict=True)]

    def _batch(self, arrays: list[Array]) -> int:
        shapes = self.model.graph.inputs.values()
        sizes = {len(array) for array, shape in zip(arrays, shapes, strict=True) if shape[0] is None}
        if len(sizes) > 1:
            raise ValueError(f"all inputs must have the same batch size, got {sorted(sizes)}")
        return sizes.pop() if sizes else 1


def _array(name: str, shape: tuple[int | None, ...], value: Any) -> Array:
    """The input as a contiguous array, without a copy where possible."""
    if not isinstance(value, np.ndarray):
        given = value
        try:
            if getattr(value, "requires_grad", False):
                value = value.detach()
            value = np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)
        # Every library has errors of its own for numbers that NumPy does not know or cannot reach.
        except Exception as error:
            kind = getattr(given, "dtype", type(given).__name__)
            where = f" on {given.device}" if hasattr(given, "device") else ""
            raise TypeError(
                f"input {name!r} must be float32 in the memory of the CPU, got {kind}{where}: convert it first"
            ) from error
    if value.dtype != np.float32:
        raise TypeError(f"input {name!r} must be float32, got {value.dtype}: convert it first")
    if value.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, value.shape, strict=True)):
        wanted = ", ".join("batch" if n is None else str(n) for n in shape)
        raise ValueError(f"input {name!r} must have shape ({wanted}), got {value.shape}")
    return np.ascontiguousarray(value)
