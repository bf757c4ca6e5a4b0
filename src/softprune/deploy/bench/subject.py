"""The network that a table of times is measured for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from softprune.deploy.bench.network import zoo_name
from softprune.deploy.export.zoo import zoo_example
from softprune.nn.catalog import build, example_shape


def subject(where: str, *, shape: str | None = None, size: int | None = None) -> tuple[nn.Module, Tensor]:
    """A network by name, and one input of it.

    Args:
        where: "resnet50" or another of the catalog, "zoo:resnet50/str-90.23" (the budget does not matter), or
            "package.module:factory".
        shape: of the input, such as "1,3,224,224".
        size: instead, pixels a side of the images of a network of the zoo.

    Raises:
        ValueError: for a .spx file, whose zeros are what they are, and for unknown networks.

    Example:
        >>> subject("zoo:digits/dense")[1].shape
        torch.Size([1, 1, 8, 8])
    """
    if where.endswith(".spx"):
        raise ValueError(
            f"{where} has the zeros that it has; a table needs the network at several densities: name it, such as "
            "resnet50, zoo:resnet50/dense, package.module:factory or a run folder"
        )
    name = zoo_name(where)
    if name is not None:
        network = name.partition("/")[0]
        example = zoo_example(name, size=size) if shape is None else torch.zeros(example_shape(network, shape))
        return build(network), example
    if size is not None:
        raise ValueError(f"size {size} is for networks of the zoo: say --input for {where}")
    return build(where), torch.zeros(example_shape(where, shape))
