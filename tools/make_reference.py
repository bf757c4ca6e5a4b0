"""Write the tables of docs/config.md, docs/data.md, docs/recipes.md and docs/sweep.md from what they are about.

Usage: python tools/make_reference.py [--check]

Each page holds its table between the lines ``<!-- begin NAME -->`` and ``<!-- end NAME -->``.
"""

import re
import sys
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from softprune.methods.base import method_names
from softprune.records import write_text
from softprune.train.config import RunConfig
from softprune.train.config.goal import PROPOSE, method_defaults, method_descriptions
from softprune.train.config.keys import leaves
from softprune.train.config.run import RecipeInfo, recipes
from softprune.train.config.sections import Section, shown
from softprune.train.data.datasets import DATA_SETS
from softprune.train.sweep.sweep_config import SweepConfig

DOCS = Path(__file__).resolve().parents[1] / "docs"


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


def recipe_table() -> str:
    """Every recipe with what to expect of it and what it costs."""
    header = [
        "| recipe | accuracy | sparsity | weights | FLOPs | source | cost |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*header, *map(_row, recipes())])


def recipe_notes() -> str:
    """What to mind about some of the recipes."""
    return "\n".join(f"- `{r.name}`: {r.expected['note']}" for r in recipes() if "note" in r.expected)


def data_table() -> str:
    """Every data set with its size, its augmentation, its files and its licence."""
    rows = ["| name | samples | what changes in training samples | where it looks | licence |"]
    rows.append("| --- | --- | --- | --- | --- |")
    for data in DATA_SETS.values():
        shape = " x ".join(str(side) for side in data.example_shape(image_size=224)[1:])
        count = "yours" if data.classes is None else f"{data.sizes[0]:,} + {data.sizes[1]:,}"
        size = f"{count}, {shape}" + (f", {data.classes} classes" if data.classes else "")
        rows.append(f"| `{data.name}` | {size} | {data.augmentation} | {data.places} | {data.licence} |")
    return "\n".join(rows)


def _row(recipe: RecipeInfo) -> str:
    expected = recipe.expected
    cells = [
        f"`{recipe.name}`",
        _percent(expected.get("accuracy")),
        _percent(expected.get("sparsity")),
        _millions(expected.get("params")),
        _millions(expected.get("flops")),
        expected.get("source", ""),
        recipe.cost,
    ]
    return f"| {' | '.join(cells)} |"


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:.2f} %"


def _millions(count: int | None) -> str:
    return "" if count is None else f"{count / 1e6:.3g}M" if count < 1e9 else f"{count / 1e9:.2f}G"


def pages() -> dict[Path, str]:
    """The pages as they should be."""
    tables = {
        "keys": key_table,
        "data": data_table,
        "recipes": recipe_table,
        "notes": recipe_notes,
        "sweep": lambda: section_table(SweepConfig),
    }
    made = {}
    for path in (DOCS / f"{page}.md" for page in ("config", "data", "recipes", "sweep")):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"^<!-- begin (\w+) -->$", text, re.M):
            block = re.compile(rf"(?<=<!-- begin {name} -->\n).*?(?=<!-- end {name} -->)", re.S)
            text = block.sub(lambda _, name=name: f"{tables[name]()}\n", text)
        made[path] = text
    return made


def main(*, check: bool) -> int:
    stale = [path for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.name} is out of date" if check else f"wrote {path.name}")
        if not check:
            write_text(path, pages()[path])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
