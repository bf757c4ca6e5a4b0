"""Writes what was measured of each method into its page: the section "Measured here" of docs/methods/*.md.

Reads the outputs of methods.py and writes between two comments of each page. Run after methods.py; with `--check`
nothing is written and pages that tell old numbers are named:

    python benchmarks/method_cards.py [--check]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from cells import markdown, spread_text

ROOT = Path(__file__).parents[1]
RESULTS, PAGES = ROOT / "benchmarks" / "results", ROOT / "docs" / "methods"
# Pages that are not about a method of the benchmark.
OTHERS = ("index",)
NUMBERS = re.compile(r"<!-- numbers -->\n.*?<!-- end -->\n", re.DOTALL)


def table(name: str, rows: list[dict[str, Any]]) -> str:
    """Accuracy and multiply-adds of the variants of a method."""
    lines = []
    for row in rows:
        if row["level"] and row["method"].split()[0] == name:
            lines.append(
                [
                    row["method"],
                    f"{100 * row['level']:g} %",
                    str(len(row["runs"])),
                    spread_text(row["accuracy"]),
                    f"{row['macs']['mean'] / 1000:,.0f} k",
                ]
            )
    lines.sort()
    return markdown(["variant", "sparsity", "seeds", "accuracy, %", "multiply-adds"], lines)


def costs(name: str, facts: dict[str, dict[str, Any]]) -> str:
    """Time and memory of a step."""
    parts = []
    for method, fact in facts.items():
        if method.split()[0] == name:
            low, high = fact["middle half"]
            time = f"{fact['ratio']:.2f} ({low:.2f} to {high:.2f})"
            parts.append(f"{method} {time}, {fact['extra bytes']:.1f} bytes per weight")
    return "Time of a step relative to a dense one, and memory beside it: " + "; ".join(parts) + ".\n"


def section(name: str, rows: list[dict[str, Any]], facts: dict[str, dict[str, Any]]) -> str:
    """What the page of a method has to say."""
    dense = next(row for row in rows if not row["level"])
    head = "A CNN of 261,392 weights, 10,000 images of Fashion-MNIST, 12 epochs; dense "
    head += f"{spread_text(dense['accuracy'])} ([all methods](../../benchmarks/results/methods.md)).\n\n"
    return f"<!-- numbers -->\n{head}{table(name, rows)}\n{costs(name, facts)}<!-- end -->\n"


def renewed(page: str, path: Path, numbers: str) -> str:
    """The page with the numbers of today."""
    assert len(NUMBERS.findall(page)) == 1, f"{path} has no place for its numbers"
    return NUMBERS.sub(lambda _: numbers, page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; name the pages that tell old numbers")
    check = parser.parse_args().check
    rows = json.loads((RESULTS / "methods.json").read_text())["rows"]
    facts = json.loads((RESULTS / "methods_cost.json").read_text())["methods"]
    old = []
    for path in sorted(PAGES.glob("*.md")):
        if path.stem in OTHERS:
            continue
        page = path.read_text()
        new = renewed(page, path, section(path.stem, rows, facts))
        if page == new:
            continue
        old.append(path.name)
        if not check:
            path.write_text(new)
    if check and old:
        sys.exit(f"old numbers in {', '.join(old)}: run python benchmarks/method_cards.py")
    print(f"{len(old)} pages {'are old' if check else 'written'}")


if __name__ == "__main__":
    main()
