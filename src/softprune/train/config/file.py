"""A configuration that is a whole file: it has a version, and is read and written as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import Field, ValidationError, field_validator

from softprune.train.config.explanation import explain
from softprune.train.config.problem import ConfigError, Problem, shown
from softprune.train.config.section import Section
from softprune.train.document import write_yaml

VERSION = 1
F = TypeVar("F", bound="ConfigFile")


class ConfigFile(Section):
    """The top of a YAML file."""

    kind: ClassVar[str]  # what to call it in a message

    version: int = Field(default=VERSION, description="Version of this format.")

    @field_validator("version")
    @classmethod
    def _readable(cls, version: int) -> int:
        if version != VERSION:
            raise ValueError(f"is {version}; this release reads version {VERSION}")
        return version

    @classmethod
    def parse(cls: type[F], data: Any, *, origin: str | None = None) -> F:
        """What plain data describe.

        Args:
            data: as read from YAML; short forms are allowed.
            origin: what to call it in a message.

        Raises:
            ConfigError: with every problem, its dotted path, and the nearest valid key.
        """
        origin = origin or cls.kind
        if not isinstance(data, Mapping):
            raise ConfigError([Problem("", f"{shown(data)} is no mapping of keys to values")], origin=origin)
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            raise ConfigError(explain(error, cls), origin=origin) from None

    def dump(self) -> str:
        """It as YAML, with every default written out; reading that gives an equal one back."""
        return write_yaml(self.model_dump(mode="json"))
