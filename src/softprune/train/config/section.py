"""What all parts of a configuration have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

# A pydantic field is strict as a whole, and a strict tuple does not take the list that YAML gives.
FROM_LIST = Field(strict=False)

Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]

_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class Section(BaseModel):
    """A frozen group of settings: unknown keys, wrong types and infinities are refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
    )

    @classmethod
    def long_form(cls, data: Any) -> Any:
        """What a short form stands for; anything else as it is."""
        return data

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        return cls.long_form(data)


class Named(Section):
    """A section whose ``name`` says what the rest is about; the name alone is its short form."""

    name: Any

    @classmethod
    def long_form(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        long = handler.resolve_ref_schema(handler(core))
        return {"anyOf": [{"type": "string", "description": "Short form: the name alone."}, long]}


def is_factory(name: str) -> bool:
    """Whether the text has the form of a Python callable, ``package.module:factory``."""
    return _FACTORY.fullmatch(name) is not None


def refuse_code(named: Iterable[tuple[str, str]], *, origin: str) -> None:
    """Raise if a file names code, before any of it is imported.

    Args:
        named: key and package.module:factory of each.
        origin: the file.

    Raises:
        ValueError: with the names, the file, and how to say that it may be trusted.
    """
    if listed := ", ".join(f"{key}: {name}" for key, name in named):
        raise ValueError(
            f"{origin} names Python code that would be imported and run ({listed}); nothing was imported. Look at what "
            "it is, and if you trust the file and the code say --trust (in Python trust=True)"
        )
