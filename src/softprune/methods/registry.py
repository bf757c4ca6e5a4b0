"""Names of methods, and methods as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from softprune.methods.base import Method
from softprune.ops import Backward, Custom, Exp, G, Sigmoid, Softplus

M = TypeVar("M", bound=type[Method])

_METHODS: dict[str, type[Method]] = {}
_GS: dict[str, type[G]] = {"sigmoid": Sigmoid, "exp": Exp, "softplus": Softplus}


def register(name: str) -> Callable[[M], M]:
    """Class decorator: make a method known by name."""

    def add(cls: M) -> M:
        if name in _METHODS:
            raise ValueError(f"a method named {name!r} exists already: {_METHODS[name].__qualname__}")
        _METHODS[name] = cls
        return cls

    return add


def method_names() -> list[str]:
    return sorted(_METHODS)


def method_class(name: str) -> type[Method]:
    """The class of a method by its name.

    Raises:
        ValueError: for an unknown name, naming the known ones.
    """
    if not isinstance(name, str) or name not in _METHODS:
        raise ValueError(f"unknown method {name!r}; known are {', '.join(method_names())}")
    return _METHODS[name]


def to_config(method: Method) -> dict[str, Any]:
    """The method as JSON-able data: its name and the fields that differ from their defaults."""
    names = {cls: name for name, cls in _METHODS.items()}
    if type(method) not in names:
        raise ValueError(f"{type(method).__qualname__} is not registered: decorate it with @register(name)")
    config: dict[str, Any] = {"method": names[type(method)]}
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        value = getattr(method, field.name)
        if value != field.default:
            config[field.name] = _encode(value)
    return config


def from_config(config: Mapping[str, Any]) -> Method:
    """The method that `to_config` described.

    Raises:
        ValueError: for an unknown method or field, naming the known ones.
    """
    given = dict(config)
    name = given.pop("method", None)
    cls = method_class(name)
    fields = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(set(given) - fields)
    if unknown:
        raise ValueError(f"method {name!r} has no field {', '.join(unknown)}; it has {', '.join(sorted(fields))}")
    return cls(**{key: _decode(value) for key, value in given.items()})


def _encode(value: Any) -> Any:
    if isinstance(value, Custom):
        raise ValueError("a Custom g holds Python functions and cannot be written to a file; use a named g there")
    if isinstance(value, G):
        kind = next((name for name, cls in _GS.items() if type(value) is cls), None)
        if kind is None:
            raise ValueError(f"{type(value).__name__} is not one of {', '.join(_GS)} and cannot be written to a file")
        return {"g": kind, "k": value.k}
    if isinstance(value, Backward):
        return {"leak": value.leak} if value.until is None else {"leak": value.leak, "until": value.until}
    return value


def _decode(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "g" in value and set(value) <= {"g", "k"}:
        if value["g"] not in _GS:
            raise ValueError(f"unknown g {value['g']!r}; known are {', '.join(_GS)}")
        return _GS[value["g"]](k=value.get("k", 1.0))
    if "leak" in value and set(value) <= {"leak", "until"}:
        return Backward(value["leak"], value.get("until"))
    raise ValueError(f"cannot read the value {dict(value)!r}")
