"""The configuration described: for editors, and for people."""

from __future__ import annotations

from typing import Any

from pydantic.fields import FieldInfo

from softprune.methods.registry import method_names
from softprune.train.config.keys import leaves
from softprune.train.config.method import PROPOSE, method_defaults, method_descriptions
from softprune.train.config.run import RunConfig
from softprune.train.config.sections import Section, shown


def config_schema() -> dict[str, Any]:
    """The JSON schema of a configuration file, with which an editor completes and explains keys."""
    schema = RunConfig.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "softprune training run"
    long = schema["$defs"]["MethodConfig"]["anyOf"][1]
    long["properties"]["name"]["enum"] = method_names()
    for name in method_names():
        for key, text in method_descriptions(name).items():
            long["properties"].setdefault(key, {"description": text, "default": method_defaults(name)[key]})
    return schema


def key_table() -> str:
    """Every key with its default and its meaning, as a Markdown table."""
    rows = _rows(RunConfig)
    at = next(index for index, row in enumerate(rows) if row[0] == "method.name") + 1
    rows[at:at] = _method_rows()
    return _markdown(rows)


def section_table(section: type[Section]) -> str:
    """Every key of another kind of file with its default and its meaning, as a Markdown table."""
    return _markdown(_rows(section))


def _rows(section: type[Section]) -> list[tuple[str, str, str]]:
    return [(path, _default(field), field.description or "") for path, field in leaves(section)]


def _markdown(rows: list[tuple[str, str, str]]) -> str:
    lines = [f"| `{path}` | {default} | {text.replace('|', chr(92) + '|')} |" for path, default, text in rows]
    return "\n".join(["| key | default | meaning |", "| --- | --- | --- |", *lines])


def _method_rows() -> list[tuple[str, str, str]]:
    rows = []
    for name in method_names():
        for key, text in method_descriptions(name).items():
            also = f" Or `{PROPOSE}`: computed from the schedule and propose.onset." if key == "s_init" else ""
            rows.append((f"method.{key}", _shown(method_defaults(name)[key]), f"({name}) {text}{also}"))
    return rows


def _default(field: FieldInfo) -> str:
    return "required" if field.is_required() else _shown(field.default)


def _shown(value: Any) -> str:
    return f"`{_inline(value)}`"


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_inline(item)}' for key, item in value.items())}}}"
    if isinstance(value, float):
        return f"{value:g}"
    return '""' if value == "" else value if isinstance(value, str) else shown(value)
