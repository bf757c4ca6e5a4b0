"""Training on with the zeros that a model already has."""

from __future__ import annotations

from torch import nn

from softprune.budget.prunable import prunable_tensors
from softprune.core.refusal import refuse_model
from softprune.core.sparsifier import Sparsifier
from softprune.core.sparsify import sparsify
from softprune.methods.registry import from_config


def freeze_support(model: nn.Module) -> Sparsifier:
    """Keep every zero of the model's weights at zero while the others train, in one line.

    For a sparse checkpoint of any origin: load it, call this, fine-tune as usual. No optimizer needs to be attached.
    `bake()` on the result gives the plain module back.

    Raises:
        ValueError: if there is no zero to keep.
    """
    model = refuse_model(model)
    with_zeros = {t.name for t in prunable_tensors(model) if bool((t.parameter == 0).any())}
    if not with_zeros:
        raise ValueError(
            f"{type(model).__name__} has no zero in its weights, so there is no support to keep: "
            "load the sparse checkpoint first"
        )
    return sparsify(
        model,
        from_config({"method": "keep-zeros"}),
        skip=[t.name for t in prunable_tensors(model) if t.name not in with_zeros],
    )
