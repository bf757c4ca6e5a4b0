"""Draws the pictures of docs/architecture.md from the source and from walks through it.

Usage: python tools/pictures.py [--write]

Between `<!-- rooms -->` and its end stands who imports whom, without what follows from it; between `<!-- NAME -->`
and its end the files that a walk of tools/house.py passes, in the order of their first call. Without --write it exits
with 1 where the page shows other rooms or files than the source has. Numbers of calls differ a little between machines:
they are as they were when the page was written.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import house

PAGE = house.ROOT / "docs" / "architecture.md"
# Folders that hold rooms of their own, and rooms that every other may be asked by.
SPLIT = ("deploy",)
WALKS = ("sparsify", "optimizer.step", "bake", "softprune train, two steps", "softprune report", "export", "first call")
LEFT_OUT = ("softprune", "softprune.__main__")


def room(name: str) -> str:
    """The room of a module.

    Example:
        >>> room("softprune.deploy.engine.execution"), room("softprune.goals.solve"), room("softprune.records")
        ('deploy/engine', 'goals', 'records')
    """
    parts = name.split(".")[1:]
    return "/".join(parts[: 2 if parts[0] in SPLIT else 1])


def rooms(source: Path) -> dict[str, set[str]]:
    """Which rooms each room imports, also inside functions."""
    known = house.modules(source)
    graph: dict[str, set[str]] = {}
    for name, module in known.items():
        if name not in LEFT_OUT and name.count(".") >= 1:
            targets = {room(other) for other in module.imports(known) if other not in LEFT_OUT}
            graph.setdefault(room(name), set()).update(targets)
    graph = {one: others - {one, *SPLIT} for one, others in graph.items() if one not in SPLIT}
    return graph


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Without the edges that a longer way says too; rooms that import each other keep theirs.

    Example:
        >>> sorted(reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()})["a"])
        ['b']
    """

    def reached(start: str, without: str) -> set[str]:
        found: set[str] = set()
        left = [other for other in graph[start] if other != without]
        while left:
            here = left.pop()
            if here not in found and here != start:
                found.add(here)
                left += graph.get(here, ())
        return found

    return {one: {other for other in others if other not in reached(one, other)} for one, others in graph.items()}


def drawn_rooms(graph: dict[str, set[str]]) -> str:
    """The rooms as a flow chart, who imports above whom is imported; those that import each other share a box."""
    names = {name: name.replace("/", "_") for name in graph}
    ring = {name: number for number, group in enumerate(house.cycles(graph)) for name in group}
    boxes: dict[str, list[str]] = {}
    for one in sorted(graph):
        boxes.setdefault(f"together{ring[one]}" if one in ring else names[one], []).append(one)
    box = {one: name for name, group in boxes.items() for one in group}
    between = {name: {box[o] for one in group for o in graph[one]} - {name} for name, group in boxes.items()}
    lines = []
    for name, group in boxes.items():
        rows = [f"{names[one]}[{one}]" for one in group]
        grouped = [f'    subgraph {name}[" "]', *(f"        {row}" for row in rows), "    end"]
        lines += [f"    {rows[0]}"] if len(group) == 1 else grouped
    lines += [f"    {one} --> {other}" for one in boxes for other in sorted(reduced(between)[one])]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


def drawn_walk(walk: house.Walk) -> str:
    """The files of a walk in the order of their first call, with the number of calls into each.

    Example:
        >>> walk = house.Walk(Path("/p"))
        >>> walk.calls = [("/p/a.py", "f 1"), ("/p/b/c.py", "g 1"), ("/p/a.py", "h 9")]
        >>> print(drawn_walk(walk).splitlines()[2])
            0["a<br>2 calls"] --> 1["b/c<br>1 call"]
    """
    boxes = [
        f'{number}["{place.removesuffix(".py")}<br>{count} call{"s" if count > 1 else ""}"]'
        for number, (place, count) in enumerate(walk.files().items())
    ]
    return "\n".join(["```mermaid", "flowchart LR", "    " + " --> ".join(boxes), "```"])


def placed(text: str, name: str, picture: str) -> str:
    """The page with a picture between its marks."""
    pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?<!-- end -->", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"{PAGE} has no place for {name!r}: <!-- {name} --> and <!-- end -->")
    return pattern.sub(lambda found: f"{found[1]}{picture}\n<!-- end -->", text, count=1)


def page(text: str, walks: dict[str, house.Walk]) -> str:
    """The page as the source has it now."""
    text = placed(text, "rooms", drawn_rooms(rooms(house.ROOT / "src" / "softprune")))
    for name in WALKS if walks else ():
        text = placed(text, name, drawn_walk(walks[name]))
    return text


def same(before: str, after: str) -> bool:
    """Whether two pages show the same rooms and files; numbers of calls may differ.

    Example:
        >>> same('0["a<br>2 calls"]', '0["a<br>1 call"]'), same('0["a<br>2 calls"]', '0["b<br>2 calls"]')
        (True, False)
    """
    return re.sub(r"<br>\d+ calls?", "", before) == re.sub(r"<br>\d+ calls?", "", after)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the page")
    given = parser.parse_args()
    before = PAGE.read_text(encoding="utf-8")
    after = page(before, house.walks())
    if given.write:
        PAGE.write_text(after, encoding="utf-8")
        return 0
    current = same(before, after)
    print(f"{PAGE} {'shows the source' if current else 'shows another source: run python tools/pictures.py --write'}")
    return int(not current)


if __name__ == "__main__":
    sys.exit(main())
