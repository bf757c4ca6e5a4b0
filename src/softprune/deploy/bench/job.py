"""Job: what every engine is to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Job:
    """One network with its input, for one engine after the other.

    Attributes:
        spx: the file for our engine.
        onnx: the file for other engines, if one of them takes part.
        zoo: the name from which PyTorch makes the module, if there is one.
        shapes: of the inputs, with the batch.
        batch: samples per call.
        threads: threads of each engine.
        tune: whether our engine measures the fastest way to compute each layer.
        layers: whether to time each layer too.
        level: instruction set of our kernels; None takes the best of the processor.
    """

    spx: str
    onnx: str | None
    zoo: str | None
    shapes: tuple[tuple[int, ...], ...]
    batch: int = 1
    threads: int = 1
    tune: bool = True
    layers: bool = True
    level: str | None = None

    def inputs(self) -> list[Array]:
        """Random numbers, the same in every process."""
        random = np.random.default_rng(0)
        return [random.standard_normal(shape).astype(np.float32) for shape in self.shapes]


def first_numbers(outputs: Any, count: int = 4096) -> Array:
    """The first numbers of the first output, to compare engines with."""
    if isinstance(outputs, list | tuple):
        outputs = outputs[0]
    elif not isinstance(outputs, np.ndarray) and hasattr(outputs, "values") and callable(outputs.values):
        outputs = next(iter(outputs.values()))
    return np.array(outputs, np.float32).reshape(-1)[:count]
