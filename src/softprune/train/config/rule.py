"""Settings for some of the tensors, written as text."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from torch import nn

from softprune.core.rule import Match, Rule
from softprune.methods.registry import from_config
from softprune.ops import G
from softprune.train.config.section import Section

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


class RuleConfig(Section):
    """Settings for the tensors that match; what is null stays as the method has it. Later rules win."""

    match: str = Field(
        description="Which tensors: a glob on the name (layer1.*), a /regular expression/, type:Conv2d, or depthwise."
    )
    skip: bool | None = Field(
        default=None, description="true leaves them dense, false takes in what is dense by default."
    )
    s_init: float | None = Field(default=None, description="Where their s starts.")
    g: dict[str, Any] | None = Field(default=None, description="Their threshold function, such as {g: exp, k: 1}.")
    granularity: Literal["tensor", "filter", "weight", "global"] | None = Field(
        default=None, description="One s per tensor, filter or weight, or one shared by all."
    )
    min_keep: Annotated[int, Field(ge=0)] | None = Field(default=None, description="Weights that each tensor keeps.")

    @field_validator("match")
    @classmethod
    def _readable(cls, text: str) -> str:
        check_match(text)
        return text

    @field_validator("g", mode="before")
    @classmethod
    def _known_g(cls, value: Any) -> Any:
        g = {"g": value} if isinstance(value, str) else value
        if isinstance(g, dict):
            _read_g(g)
        return g

    def build(self) -> Rule:
        """The rule that softprune.sparsify takes."""
        settings = self.model_dump(exclude={"match", "g"})
        return Rule(parse_match(self.match), g=None if self.g is None else _read_g(self.g), **settings)


def check_match(text: str) -> None:
    """Refuse a text that can mean no match. A class of a package is looked for only once the network is there.

    Raises:
        ValueError: for a broken regular expression, or what is no type of module.
    """
    if not _DOTTED.fullmatch(text.removeprefix("type:")) or not text.startswith("type:"):
        parse_match(text)


def parse_match(text: str) -> Match:
    """What a text in a configuration means as a match.

    Nothing is imported for it: a class that the network has layers of was imported when the network was built.

    Raises:
        ValueError: for a broken regular expression or an unknown type of module.

    Example:
        >>> parse_match("/conv[12]/").pattern, parse_match("type:Conv2d").__name__, parse_match("fc.*")
        ('conv[12]', 'Conv2d', 'fc.*')
    """
    if len(text) > 1 and text.startswith("/") and text.endswith("/"):
        try:
            return re.compile(text[1:-1])
        except re.error as error:
            raise ValueError(f"{text} is no regular expression: {error}") from error
    if text.startswith("type:"):
        return _module_type(text.removeprefix("type:"))
    if text == "depthwise":
        return depthwise
    if not text.strip():
        raise ValueError("an empty match means nothing; write a glob such as layer1.*")
    return text


def depthwise(name: str, module: nn.Module) -> bool:
    """Whether a module convolves every channel by itself."""
    groups = getattr(module, "groups", 1)
    return groups > 1 and groups == getattr(module, "in_channels", None)


def _module_type(path: str) -> type[nn.Module]:
    home, _, name = path.rpartition(".")
    module = sys.modules.get(home or "torch.nn")
    if module is None:
        raise ValueError(
            f"type:{path}: the network has imported no module {home!r}; write the one that defines the class"
        )
    found = vars(module).get(name)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ValueError(f"type:{path} is no module type; write type:Conv2d, or type:package.module.Class")
    return found


def _read_g(g: dict[str, Any]) -> G:
    return from_config({"method": "str", "g": g}).g  # type: ignore[attr-defined]
