"""Matrix products; one with a constant is a linear layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.fx import Node

from softprune.deploy.export.graph import Shape
from softprune.deploy.export.lowering import Lowering, UnsupportedError
from softprune.deploy.export.rules.arithmetic import combine
from softprune.deploy.export.rules.convolution import linear


def product(lowering: Lowering, a: Any, b: Any, shape: Shape | None = None) -> str:
    """a b over the last two axes."""
    if isinstance(b, Tensor) and b.ndim == 2:
        return linear(lowering, lowering.value(a), b.detach().t().contiguous())
    first, second = lowering.value(a), lowering.value(b)
    if min(len(lowering.graph.shapes[first]), len(lowering.graph.shapes[second])) < 2:
        raise UnsupportedError("products with a vector are not in the format: give it a second axis")
    return lowering.emit("matmul", [first, second], shape)


def _matmul(lowering: Lowering, a: Node, b: Node) -> str:
    return product(lowering, lowering[a], lowering[b])


def _addmm(lowering: Lowering, bias: Node, a: Node, b: Node, *, beta: float = 1, alpha: float = 1) -> str:
    out = product(lowering, lowering[a], lowering[b])
    out = out if alpha == 1 else combine(lowering, "mul", out, alpha)
    if beta == 0:
        return out
    more = lowering[bias]
    if beta != 1:
        more = more * beta if isinstance(more, Tensor) else combine(lowering, "mul", more, beta)
    return combine(lowering, "add", out, more)


RULES: dict[str, Callable[..., Any]] = {
    "aten.matmul.default": _matmul,
    "aten.mm.default": _matmul,
    "aten.bmm.default": _matmul,
    "aten.addmm.default": _addmm,
    "aten.baddbmm.default": _addmm,
}
