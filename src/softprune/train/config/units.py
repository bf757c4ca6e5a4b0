"""What is kept or pruned as a whole."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from softprune.ops.units import Units
from softprune.train.config.section import FROM_LIST, Count, Section


class UnitsConfig(Section):
    """What counts as one unit: weight, filter or rank, each alone for short, or {block: [rows, columns]}."""

    kind: Literal["weight", "filter", "rank", "block"] = Field(
        default="weight",
        description="weight, filter (output channels) or rank (directions of low-rank layers that learn their rank); "
        "units: rank is short for it. Blocks are written units: {block: [4, 8]}.",
    )
    block: Annotated[tuple[Count, Count], FROM_LIST] | None = Field(
        default=None, description="Rows and columns of a block."
    )

    @classmethod
    def long_form(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"kind": data}
        return {"kind": "block", **data} if isinstance(data, dict) and data.get("block") is not None else data

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        long = handler.resolve_ref_schema(handler(core))
        return {"anyOf": [{"enum": ["weight", "filter", "rank"], "description": "Short form: the kind alone."}, long]}

    @model_validator(mode="after")
    def _sized(self) -> UnitsConfig:
        if (self.kind == "block") != (self.block is not None):
            raise ValueError("blocks have rows and columns, nothing else has; write {block: [4, 8]}, or filter")
        return self

    def build(self) -> Units:
        """As `sparsify` takes it."""
        return Units(self.kind) if self.block is None else Units.block(*self.block)
