"""The method, by its name and its own fields; what a field means and allows is said by the method alone."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field, model_validator

from softprune.methods.base import Method
from softprune.methods.registry import from_config, method_names
from softprune.ops import Backward, G
from softprune.train.config.sections import ConfigError, Named, Problem, unknown_choice, unknown_key

PROPOSE = "propose"
_BACKWARD = {"masked": {"leak": 0.0}, "straight_through": {"leak": 1.0}, "annealed": {"leak": 1.0, "until": 1.0}}


class MethodConfig(Named):
    """The method that makes the weights sparse. Every field of the method is a key."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="A registered method; `str` is the paper's.")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        """Check the fields by making the method, and write out those that were left at their default."""
        if isinstance(data, str):
            data = {"name": data}
        if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
            return data  # refused by the fields themselves
        name = data["name"]
        if name not in method_names():
            raise ConfigError([Problem("name", unknown_choice(name, method_names()))])
        given = {key: _expand(key, value) for key, value in data.items() if key != "name"}
        return {"name": name, **_settings(name, given)}

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of the method, as plain data."""
        return dict(self.model_extra or {})

    @property
    def proposes(self) -> bool:
        """Whether s_init is to be computed from the schedule."""
        return self.settings.get("s_init") == PROPOSE

    @property
    def sketch(self) -> Method:
        """The method, with any s_init where that is still to be computed."""
        return self.build(-1.0 if self.proposes else None)

    def build(self, s_init: float | None = None) -> Method:
        """The method itself, with another `s_init` if that is "propose" in the configuration."""
        settings = self.settings if s_init is None else {**self.settings, "s_init": s_init}
        if settings.get("s_init") == PROPOSE:
            raise ValueError('method.s_init is "propose": compute it with softprune.propose and pass it to build()')
        return from_config({"method": self.name, **settings})


def method_defaults(name: str) -> dict[str, Any]:
    """Every field of a method with its default, as plain data.

    Example:
        >>> method_defaults("str")["g"]
        {'g': 'sigmoid', 'k': 1.0}
    """
    return _plain_fields(from_config({"method": name}))


def method_descriptions(name: str) -> dict[str, str]:
    """Every field of a method with what the docstring of its class says about it."""
    doc = type(from_config({"method": name})).__doc__ or ""
    args = re.search(r"^ *Args:\n(.*?)(?:\n\s*\n|\Z)", doc, re.M | re.S)
    found = re.findall(r"^ {8}(\w+): (.*?)(?=^ {8}\w+: |\Z)", args[1] if args else "", re.M | re.S)
    said = {key: " ".join(text.split()) for key, text in found}
    return {key: said.get(key, f"See the method {name}.") for key in method_defaults(name)}


def _settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of the method, those given and those left at their default; every wrong one is reported."""
    known = method_defaults(name)
    proposed = {"s_init": PROPOSE} if "s_init" in known and given.get("s_init") == PROPOSE else {}
    fixed = {key: value for key, value in given.items() if key not in proposed}
    keys = ["name", *known]
    problems = [Problem(key, unknown_key(["method", key], keys).message) for key in fixed if key not in known]
    # One by one first, so that each problem is found and named by its key.
    for key in [key for key in fixed if key in known]:
        try:
            from_config({"method": name, key: fixed[key]})
        except (ValueError, TypeError) as error:
            problems.append(Problem(key, f"{error}; or write {PROPOSE}" if key == "s_init" else str(error)))
    if problems:
        raise ConfigError(problems)
    try:
        return {**_plain_fields(from_config({"method": name, **fixed})), **proposed}
    except (ValueError, TypeError) as error:
        raise ConfigError([Problem("", str(error))]) from error


def _expand(key: str, value: Any) -> Any:
    """The long form of a short one: ``g: exp``, ``backward: straight_through``."""
    if key == "g" and isinstance(value, str):
        return {"g": value}
    if key == "backward" and isinstance(value, str):
        return _BACKWARD.get(value, value)
    return value


def _plain_fields(method: Method) -> dict[str, Any]:
    fields = dataclasses.fields(method)  # type: ignore[arg-type]
    return {f.name: _plain(getattr(method, f.name), like=f.default) for f in fields}


def _plain(value: Any, *, like: Any) -> Any:
    if isinstance(value, G):
        return {"g": type(value).__name__.lower(), "k": value.k if isinstance(value.k, str) else float(value.k)}
    if isinstance(value, Backward):
        return {"leak": float(value.leak)} | ({} if value.until is None else {"until": float(value.until)})
    return float(value) if isinstance(like, float) else value
