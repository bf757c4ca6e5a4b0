"""A goal in milliseconds, with its table of times."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from softprune.budget.goals import Latency
from softprune.budget.latency import LatencyTable
from softprune.train.config.section import Positive, Section


class LatencyConfig(Section):
    """The time that a call of the engine shall take."""

    ms: Positive = Field(description="Or the milliseconds that a call of the engine shall take.")
    table: dict[str, Any] = Field(
        description="The times it is predicted from: a file that softprune bench --table wrote. A run keeps what is in "
        "the file, so that it does not depend on it."
    )

    @field_validator("table", mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        """The content of a file in place of its name, checked."""
        if isinstance(given, str):
            try:
                return LatencyTable.load(given).to_dict()
            except OSError as error:
                raise ValueError(f"cannot read {given}: {error.strerror}") from error
        return LatencyTable.from_dict(given).to_dict() if isinstance(given, dict) else given

    def goal(self) -> Latency:
        """As `sparsify` takes it."""
        return Latency(self.ms, LatencyTable.from_dict(self.table))
