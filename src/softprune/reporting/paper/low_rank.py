"""Sizes of the two matrices of FastGRNN, whole and of low rank."""

from __future__ import annotations

from collections.abc import Mapping

# Inputs D and hidden units H of the paper's two data sets: W is D x H, U is H x H.
DIMENSIONS = {"google12": (32, 100), "har2": (9, 80)}


def matrix_params(data: str, r_w: int, *, r_u: int) -> int:
    """Entries of both matrices; a matrix of full rank is stored whole, any other as two factors.

    Args:
        data: "google12" or "har2".
        r_w: rank of W.
        r_u: rank of U.

    Example:
        >>> matrix_params("google12", 32, r_u=100), matrix_params("google12", 9, r_u=24)
        (13200, 5988)
    """
    inputs, hidden = DIMENSIONS[data]
    w = inputs * hidden if r_w == min(inputs, hidden) else r_w * (inputs + hidden)
    u = hidden * hidden if r_u == hidden else 2 * r_u * hidden
    return w + u


def size_reduction(record: Mapping[str, str]) -> float:
    """By which fraction the matrices of one row of table 3 are smaller than whole ones."""
    inputs, hidden = DIMENSIONS[record["data"]]
    whole = matrix_params(record["data"], inputs, r_u=hidden)
    return 1 - matrix_params(record["data"], int(record["r_w"]), r_u=int(record["r_u"])) / whole
