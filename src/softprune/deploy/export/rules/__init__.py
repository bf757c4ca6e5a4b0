"""Rules: how each ATen operation is said in the operations of the format."""

from collections.abc import Callable
from typing import Any

from softprune.deploy.export.rules import arithmetic, convolution, layout, norm, pool, product

RULES: dict[str, Callable[..., Any]] = {
    **arithmetic.RULES,
    **convolution.RULES,
    **layout.RULES,
    **norm.RULES,
    **pool.RULES,
    **product.RULES,
}

__all__ = ["RULES"]
