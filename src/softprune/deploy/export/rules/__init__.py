"""Rules: how each ATen operation is said in the operations of the format."""

from collections.abc import Callable
from typing import Any

from softprune.deploy.export.rules import arithmetic, attention, convolution, layout, norm, padding, pool, product

RULES: dict[str, Callable[..., Any]] = {
    **arithmetic.RULES,
    **attention.RULES,
    **convolution.RULES,
    **layout.RULES,
    **norm.RULES,
    **padding.RULES,
    **pool.RULES,
    **product.RULES,
}

__all__ = ["RULES"]
