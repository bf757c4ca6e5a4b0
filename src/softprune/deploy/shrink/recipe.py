"""Recipes: which channels of each layer stay, as a file from which a network is made small again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import nn

from softprune.budget.files import parse_json, read_text, write_text
from softprune.channels.layers import CONVOLUTIONS, NORMS, TRANSPOSED
from softprune.deploy.shrink.cut import Cut, cut, sizes

FORMAT, VERSION = "softprune-shrink", 1
# What a recipe can be about.
LAYERS = (*CONVOLUTIONS, *TRANSPOSED, *NORMS, nn.Linear)


@dataclass(frozen=True)
class Recipe:
    """What stays of every layer that gets smaller.

    Args:
        layers: path of the module -> what stays of it.
    """

    layers: Mapping[str, Cut]

    def check(self, model: nn.Module) -> None:
        """Refuse a network that this recipe is not for.

        Raises:
            ValueError: that names the layer.
        """
        modules = dict(model.named_modules())
        for path, what in self.layers.items():
            module = modules.get(path)
            if not isinstance(module, LAYERS):
                raise ValueError(f"the recipe is of another network: it has a layer {path!r}, this one has not")
            for kept, size, side in zip((what.inputs, what.outputs), sizes(module), ("reads", "makes"), strict=True):
                if kept[-1] >= size:
                    raise ValueError(
                        f"the recipe is of another network: it keeps channel {kept[-1]} of what {path} {side}, "
                        f"which has {size} channels"
                    )

    def apply(self, model: nn.Module) -> nn.Module:
        """Make a network of the original size small, in place; its weights are those of the channels that stay.

        Raises:
            ValueError: if the recipe is of another network; it is untouched then.
        """
        self.check(model)
        for path, what in self.layers.items():
            cut(model.get_submodule(path), what)
        return model

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it, whole or not at all."""
        return write_text(path, self.to_json() + "\n")

    def to_json(self) -> str:
        """The JSON document, with format name and version."""
        layers = {path: asdict(what) for path, what in self.layers.items()}
        return json.dumps({"format": FORMAT, "version": VERSION, "layers": layers})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recipe:
        """Read and check one.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if the file is no recipe.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no {path}: name a folder that Shrunk.save wrote")
        return cls.from_json(read_text(Path(path)), origin=str(path))

    @classmethod
    def from_json(cls, text: str, *, origin: str) -> Recipe:
        """Read the JSON document; ``origin`` names the file in a message."""
        content = parse_json(text, origin)
        if content.get("format") != FORMAT or content.get("version") != VERSION:
            raise ValueError(f"{origin} is no recipe of version {VERSION} by which a network was made smaller")
        layers = content.get("layers")
        if not isinstance(layers, dict):
            raise ValueError(f"{origin}: layers must be an object of layers")
        return cls({name: _cut(f"{origin}: {name}", value) for name, value in layers.items()})


def _cut(where: str, value: Any) -> Cut:
    if (
        not isinstance(value, dict)
        or set(value) != {"inputs", "outputs", "bias"}
        or not isinstance(value["bias"], bool)
    ):
        raise ValueError(f"{where} must have inputs, outputs and bias")
    return Cut(_numbers(where, value["inputs"]), _numbers(where, value["outputs"]), value["bias"])


def _numbers(where: str, value: Any) -> tuple[int, ...]:
    right = isinstance(value, list) and value and all(type(n) is int and n >= 0 for n in value)
    if not right or any(a >= b for a, b in pairwise(value)):
        raise ValueError(f"{where}: channels are rising whole numbers from 0 on, at least one")
    return tuple(value)
