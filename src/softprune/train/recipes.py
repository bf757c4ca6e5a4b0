"""Recipes: configurations of the paper's runs, and small ones for a laptop, shipped with the package."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from softprune.train.document import parse_yaml

if TYPE_CHECKING:
    from softprune.train.config import RunConfig

# What may stand before a name, to say that it is no file.
PREFIX = "recipe:"


@dataclass(frozen=True)
class RecipeInfo:
    """One recipe.

    Attributes:
        name: what to pass to ``softprune train``, "network/what".
        summary: one line about it.
        expected: what it should give, as in the file: accuracy, sparsity, params, flops, source and note, where known.
            Plain data, because the model of the configuration would import torch, and a list should be quick.
        cost: roughly what it takes.
    """

    name: str
    summary: str
    expected: dict[str, Any]
    cost: str


def recipes() -> list[RecipeInfo]:
    """All recipes, by network and name. Reads the files only, so that a list is quick; `load_recipe` checks one.

    Example:
        >>> [recipe.name for recipe in recipes() if recipe.name.startswith("digits/")]
        ['digits/dense', 'digits/str', 'digits/str-goal']
    """
    return [_info(name) for name in sorted(_files())]


def load_recipe(name: str) -> RunConfig:
    """The configuration of a recipe.

    Raises:
        ValueError: for an unknown name, with the nearest ones.

    Example:
        >>> load_recipe("resnet50/str-90.23").method.settings["s_init"]
        -3200.0
    """
    from softprune.train.config import RunConfig

    return RunConfig.parse(parse_yaml(recipe_text(name), f"recipe {name}"), origin=f"recipe {name}")


def recipe_text(name: str) -> str:
    """The file of a recipe, with its comments: what to copy as the start of a configuration of one's own.

    Args:
        name: "network/what"; behind "recipe:" also with a dash for the slash, "recipe:network-what".
    """
    files = _files()
    if name.startswith(PREFIX):
        name = name.removeprefix(PREFIX)
        name = next((known for known in files if known.replace("/", "-") == name), name)
    if name not in files:
        names = sorted(files)
        network = name.partition("/")[0]
        near = get_close_matches(name, names, n=3, cutoff=0.5) or [n for n in names if n.startswith(f"{network}/")]
        hint = f"did you mean {' or '.join(near[:4])}?" if near else f"the recipes are {', '.join(names)}"
        raise ValueError(f"{name!r} is neither a .yaml file nor a recipe; {hint}")
    return files[name]


def _info(name: str) -> RecipeInfo:
    data = parse_yaml(recipe_text(name), f"recipe {name}")
    expected = dict(data["expected"])
    cost = expected.pop("cost")
    return RecipeInfo(name, data["summary"], expected, cost)


@cache
def _files() -> dict[str, str]:
    root = resources.files("softprune.train") / "recipe_data"
    return {
        f"{folder.name}/{file.name.removesuffix('.yaml')}": file.read_text(encoding="utf-8")
        for folder in root.iterdir()
        if folder.is_dir()
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    }
