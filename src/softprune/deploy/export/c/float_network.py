"""A FastGRNN classifier as plain arrays, and the normalisation in front of it: what every C program is written from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from softprune.deploy.export.exporting import plain_module
from softprune.nn import FastGRNNClassifier, LowRankLinear
from softprune.nn.fastgrnn import FastGRNN, FastGRNNCell
from softprune.nn.low_rank import fold
from softprune.ops.recurrence import Curve

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Matrix:
    """A matrix ``up`` [out, in], or the product ``up down`` of [out, rank] and [rank, in]."""

    up: Floats
    down: Floats | None = None


@dataclass(frozen=True)
class FloatNetwork:
    """The numbers of a classifier, float32 and finite."""

    w: Matrix  # from the inputs to the state
    u: Matrix  # from the state to the state
    gate_bias: Floats  # [hidden]
    update_bias: Floats  # [hidden]
    zeta: float  # after its sigmoid
    nu: float  # after its sigmoid
    gate: Curve
    update: Curve
    head: Floats  # classes from the last state, [classes, hidden]
    head_bias: Floats  # [classes]
    features: int  # of an input

    @property
    def hidden(self) -> int:
        return len(self.gate_bias)

    @property
    def classes(self) -> int:
        return len(self.head_bias)


def plain_classifier(model: nn.Module) -> FastGRNNClassifier:
    """A copy of a baked FastGRNN classifier with its matrices folded, in float32 on the CPU; others are refused."""
    model = plain_module(model)
    for path, module in model.named_modules():
        if "parametrizations" in module._modules:
            raise ValueError(f"{path or 'the model'} is parametrized: make its weights plain first (softprune.bake)")
    _check_parts(model)
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor.float()).all():
            raise ValueError(f"{name} has values that are not finite in float32: a C program of it would be of no use")
    folded = fold(model).float().cpu().eval()
    assert isinstance(folded, FastGRNNClassifier)
    return folded


def _check_parts(model: nn.Module) -> None:
    matrices = (nn.Linear, LowRankLinear)
    expected: dict[str, tuple[type[nn.Module], ...]] = {
        "": (FastGRNNClassifier,),
        "rnn": (FastGRNN,),
        "rnn.cell": (FastGRNNCell,),
        "rnn.cell.w": matrices,
        "rnn.cell.u": matrices,
        "fc": (nn.Linear,),
    }
    # A subclass may compute something else, so the type has to be the very one.
    for path, module in model.named_modules():
        if type(module) not in expected.get(path, ()):
            whole = path or "the model"
            raise ValueError(
                f"{whole} is a {type(module).__name__}: only softprune.nn.FastGRNNClassifier with its own parts "
                "can be written as C, so nothing was written"
            )
    cell = model.get_submodule("rnn.cell")
    for path, features, outputs, biased in (
        ("rnn.cell.w", cell.input_size, cell.hidden_size, False),
        ("rnn.cell.u", cell.hidden_size, cell.hidden_size, False),
        ("fc", cell.hidden_size, None, True),
    ):
        layer = model.get_submodule(path)
        same = layer.in_features == features and outputs in (None, layer.out_features)
        if not same or (layer.bias is not None) != biased:
            raise ValueError(f"{path} is {layer}, which does not fit its place in {cell}")


def read_network(model: FastGRNNClassifier) -> FloatNetwork:
    """The numbers of what `plain_classifier` returned."""
    cell = model.rnn.cell
    return FloatNetwork(
        w=_matrix(cell.w),
        u=_matrix(cell.u),
        gate_bias=_array(cell.gate_bias),
        update_bias=_array(cell.update_bias),
        zeta=float(cell.zeta.detach().sigmoid()),
        nu=float(cell.nu.detach().sigmoid()),
        gate=cell.gate,
        update=cell.update,
        head=_array(model.fc.weight),
        head_bias=_array(model.fc.bias),
        features=cell.input_size,
    )


def _matrix(layer: nn.Linear | LowRankLinear) -> Matrix:
    if isinstance(layer, LowRankLinear):
        return Matrix(_array(layer.up), _array(layer.down))
    return Matrix(_array(layer.weight))


def _array(tensor: Tensor) -> Floats:
    return tensor.detach().numpy().copy()


@dataclass(frozen=True)
class Normaliser:
    """From raw values of sensors to what the network was trained on, in float32 as the C program computes it."""

    mean: Floats  # [1, features] for all steps alike, or [steps, features]
    inverse: Floats  # one over the deviation, of the same shape

    def __call__(self, windows: Floats) -> Floats:
        """Raw windows [n, steps, features], normalised."""
        return (windows - self.mean) * self.inverse

    def undone(self, windows: Floats) -> Floats:
        """Raw windows that normalise to these, up to rounding."""
        return (windows / self.inverse.astype(np.float64) + self.mean).astype(np.float32)


def read_normalisation(given: tuple[ArrayLike, ArrayLike] | None, *, steps: int, features: int) -> Normaliser | None:
    """Mean and deviation, [features] or [steps, features] each, checked; None if inputs come normalised."""
    if given is None:
        return None
    mean, deviation = (np.asarray(part, np.float64) for part in given)
    for name, part in (("mean", mean), ("deviation", deviation)):
        if part.shape not in ((features,), (steps, features)) or part.shape != mean.shape:
            raise ValueError(
                f"the {name} of the normalisation has shape {part.shape}; mean and deviation must both be "
                f"({features},) or ({steps}, {features})"
            )
    with np.errstate(divide="ignore", over="ignore"):
        inverse = (1 / deviation).astype(np.float32)
        shift = mean.astype(np.float32)
    if not np.isfinite(shift).all() or not (np.isfinite(inverse) & (inverse > 0)).all():
        raise ValueError("the normalisation needs finite means and positive, finite deviations (in float32)")
    return Normaliser(shift.reshape(-1, features), inverse.reshape(-1, features))
