"""Rules: how each ATen operation is said in the operations of the format."""

from softprune.deploy.export.aten import arithmetic, layers, moves
from softprune.deploy.export.translate import Rules

RULES: Rules = {**arithmetic.RULES, **layers.RULES, **moves.RULES}

__all__ = ["RULES"]
