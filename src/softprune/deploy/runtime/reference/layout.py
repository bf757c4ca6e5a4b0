"""Operations that move elements and compute nothing."""

from __future__ import annotations

import numpy as np

from softprune.deploy.runtime.reference.call import Array, Call


def concat(call: Call) -> Array:
    """The inputs one behind the other along one axis."""
    return np.concatenate(call.inputs, axis=int(call.op["axis"]))


def reshape(call: Call) -> Array:
    """The same elements in another shape; null is the batch, -1 what is left."""
    return call.inputs[0].reshape([call.batch if size is None else int(size) for size in call.op["shape"]])


def permute(call: Call) -> Array:
    """The axes in another order."""
    return np.ascontiguousarray(call.inputs[0].transpose(call.op["axes"]))


def take(call: Call) -> Array:
    """Every step-th element from start to before stop along one axis."""
    index = [slice(None)] * call.inputs[0].ndim
    index[int(call.op["axis"])] = slice(call.op["start"], call.op["stop"], call.op["step"])
    return call.inputs[0][tuple(index)]


def pad(call: Call) -> Array:
    """An image with its own pixels around it: mirrored, from the other side, or those of the edge."""
    top, bottom, left, right = call.op["padding"]
    mode = {"reflect": "reflect", "circular": "wrap", "replicate": "edge"}[call.op["mode"]]
    return np.pad(call.inputs[0], ((0, 0), (0, 0), (top, bottom), (left, right)), mode=mode)  # type: ignore[call-overload, no-any-return]


def constant(call: Call) -> Array:
    """A weight as a value."""
    return call.needed("weight")


def identity(call: Call) -> Array:
    """The input itself."""
    return call.inputs[0]
