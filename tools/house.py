"""The figures of the house: how large the source is, how it hangs together, and how far one has to walk through it.

Usage: python tools/house.py [--source src/softprune] [--json FILE] [--no-walks] [--check [LIMITS.json]]

It counts files and lines, modules that only one other imports, import cycles (imports inside functions count, those for
type checkers do not), names that are used twice, places outside their rooms that ask which goal or which unit they have
before them, and the depth of inheritance. Then it walks: how many of our files, functions and calls `sparsify`, a step
of the optimizer and so on pass through, and how often the next call is in another file. Only our own functions count,
not lambdas and comprehensions, and everything is imported and was called once before. A walk imports what is installed:
set PYTHONPATH to walk through another tree.

With --check it exits with 1 when a figure exceeds its limit: those of the file, or LIMITS below. After a change for the
better, lower them.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GOALS = {"Goal", "Sparsity", "Params", "Flops", "Latency", "Filters", "Rank"}
KINDS = {"weight", "filter", "block", "rank"}
# Where a goal may be asked what it is, and a unit of what kind it is.
GOAL_ROOMS = ("goals/",)
UNIT_ROOMS = ("goals/", "structure/", "budget/units.py")

# Names that stand for the same idea in parallel places, with the reason: they are no repetition.
PARALLEL: dict[str, tuple[str, ...]] = {
    "a command is called like the room that it calls, and the main module of a room like the room": (
        *("deploy", "cli.deploy"),
        *("budget", "budget.budget", "cli.budget", "cli.report", "reporting.report"),
        *("forecast", "forecast.forecast", "deploy.engine", "deploy.engine.engine"),
        *("train.sweep", "train.sweep.sweep"),
    ),
    "a layer and the arithmetic behind it": ("nn.fastgrnn", "ops.recurrence.fastgrnn"),
    "a network and the data set that it is for": ("nn.digits", "train.data.digits"),
    "a table of times and its measurement": ("budget.latency", "deploy.bench.latency"),
    "a goal and its section in a configuration": ("goals.goal", "train.config.goal"),
    "a run: made, configured, searched for, read again (paths that pages name)": (
        *("train.run", "train.config.run", "train.sweep.run", "reporting.run"),
    ),
    "what depends on the step: a goal, the learning rate, a forecast's reading of one (paths that pages name)": (
        *("goals.schedule", "train.schedule", "forecast.schedule"),
    ),
    "what all classes of a room are derived from": ("methods.base", "goals.base"),
    "the callback of a framework, under one name in each adapter": (
        *("adapters.lightning.SoftpruneCallback", "adapters.transformers.SoftpruneCallback"),
    ),
}

# What there was when they were set: no figure may grow. Calls and changes of file may by a twentieth, since machines
# differ in what is compiled, and so may lines. How long files are on average is nobody's limit.
LIMITS: dict[str, int] = {
    "files": 212,
    "lines": 39_500,
    "files of 50 lines or fewer": 36,
    "files over 400 lines": 7,
    "imported by exactly one module": 58,
    "imports of ours inside functions": 82,
    "import cycles": 0,
    "modules in import cycles": 0,
    "module names used twice or more": 0,
    "class names used twice or more": 0,
    "tests of the class of a goal": 0,
    "files with tests of the class of a goal": 0,
    "tests of the kind of unit": 0,
    "files with tests of the kind of unit": 0,
    "deepest inheritance": 3,
    "public members of Method": 12,
    "sparsify: files": 12,
    "sparsify: functions": 81,
    "sparsify: calls": 228,
    "sparsify: changes of file": 94,
    "attach: files": 7,
    "attach: functions": 26,
    "attach: calls": 62,
    "attach: changes of file": 29,
    "forward and backward: files": 3,
    "forward and backward: functions": 8,
    "forward and backward: calls": 16,
    "forward and backward: changes of file": 5,
    "optimizer.step: files": 8,
    "optimizer.step: functions": 69,
    "optimizer.step: calls": 198,
    "optimizer.step: changes of file": 75,
    "bake: files": 12,
    "bake: functions": 54,
    "bake: calls": 228,
    "bake: changes of file": 82,
    "softprune train, two steps: files": 45,
    "softprune train, two steps: functions": 426,
    "softprune train, two steps: calls": 3_292,
    "softprune train, two steps: changes of file": 1_014,
    "softprune report: files": 19,
    "softprune report: functions": 160,
    "softprune report: calls": 1_898,
    "softprune report: changes of file": 385,
    "export: files": 10,
    "export: functions": 63,
    "export: calls": 263,
    "export: changes of file": 49,
    "load: files": 9,
    "load: functions": 44,
    "load: calls": 240,
    "load: changes of file": 102,
    "first call: files": 14,
    "first call: functions": 131,
    "first call: calls": 645,
    "first call: changes of file": 223,
    "second call: files": 3,
    "second call: functions": 10,
    "second call: calls": 10,
    "second call: changes of file": 2,
}


# modules


class Module:
    """One source file: its tree, and what it imports of ours when it runs."""

    def __init__(self, name: str, path: Path, place: str) -> None:
        self.name = name
        self.path = path
        self.place = place  # relative to the source
        text = path.read_text(encoding="utf-8")
        self.lines = len(text.splitlines())
        self.tree = ast.parse(text)

    @property
    def package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    def imports(self, known: dict[str, Module]) -> set[str]:
        """The modules of ours that it imports, at the top or inside functions."""
        return {target for node in _running(self.tree) for target in self._targets(node, known)} - {self.name}

    def _targets(self, node: ast.AST, known: dict[str, Module]) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = self.origin(node)
            for alias in node.names:
                # What is taken from a package is the module of that name if there is one, else the package itself.
                below = f"{base}.{alias.name}"
                if below in known:
                    yield below
                elif base in known:
                    yield base

    def origin(self, node: ast.ImportFrom) -> str:
        """The module that an import takes from, also where it is relative."""
        if not node.level:
            return node.module or ""
        parts = self.package.split(".")
        above = ".".join(parts[: len(parts) - node.level + 1])
        return f"{above}.{node.module}" if node.module else above


def modules(source: Path) -> dict[str, Module]:
    """All modules below a package's folder, by their dotted names."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        place = path.relative_to(source)
        parts = [source.name, *place.with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path, place.as_posix())
    return found


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield other
                yield from _running(other)
            continue
        yield node
        yield from _running(node)


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules of which each imports, over the others, every other: largest first (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            group = sorted(stack[at:])
            del stack[at:]
            if len(group) > 1:
                found.append(group)

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return sorted(found, key=lambda group: (-len(group), group))


# counting


def figures(source: Path) -> tuple[dict[str, float], dict[str, list[str]]]:
    """What can be read from the source: the figures, and for some of them what was counted."""
    known = modules(source)
    lines = [m.lines for m in known.values()]
    graph = {name: m.imports(known) for name, m in known.items()}
    users = Counter(target for targets in graph.values() for target in targets)
    alone = [name for name in sorted(known) if users[name] == 1]
    beside = [n for n in alone if any(n in graph[m] and known[m].package == known[n].package for m in known)]
    rings = cycles(graph)
    # A package counts under the name of its folder.
    names = _repeated(known)
    classes = [(m, node) for m in known.values() for node in ast.walk(m.tree) if isinstance(node, ast.ClassDef)]
    class_names = _repeated(f"{module.name}.{node.name}" for module, node in classes)
    goal_tests = _where(known, asks_for_a_goal, GOAL_ROOMS)
    all_goal_tests = _where(known, asks_for_a_goal, ())
    unit_tests = _where(known, asks_for_a_unit, UNIT_ROOMS)
    lineage = deepest(classes)
    lazy = sum(len(list(m._targets(node, known))) > 0 for m in known.values() for node in _inside_functions(m.tree))
    numbers: dict[str, float] = {
        "files": len(lines),
        "lines": sum(lines),
        "mean lines": round(statistics.mean(lines), 1),
        "median lines": statistics.median(lines),
        "files of 50 lines or fewer": sum(n <= 50 for n in lines),
        "files of 100 lines or fewer": sum(n <= 100 for n in lines),
        "files over 250 lines": sum(n > 250 for n in lines),
        "files over 400 lines": sum(n > 400 for n in lines),
        "imported by exactly one module": len(alone),
        "imported by exactly one module, of the same folder": len(beside),
        "imports of ours inside functions": lazy,
        "import cycles": len(rings),
        "modules in import cycles": sum(map(len, rings)),
        "module names used twice or more": len(names),
        "class names used twice or more": len(class_names),
        "tests of the class of a goal, everywhere": len(all_goal_tests),
        "tests of the class of a goal": len(goal_tests),
        "files with tests of the class of a goal": len({line.split(":")[0] for line in goal_tests}),
        "tests of the kind of unit": len(unit_tests),
        "files with tests of the kind of unit": len({line.split(":")[0] for line in unit_tests}),
        "deepest inheritance": len(lineage),
        "public members of Method": sum(len(public(n)) for m, n in classes if n.name == "Method"),
    }
    details = {
        "import cycles": [", ".join(group) for group in rings],
        "module names used twice or more": names,
        "class names used twice or more": class_names,
        "tests of the class of a goal": goal_tests,
        "tests of the kind of unit": unit_tests,
        "deepest inheritance": [" > ".join(lineage)],
    }
    return numbers, details


def asks_for_a_goal(node: ast.AST) -> bool:
    """`isinstance(x, Flops)`, also with several classes, and `case Flops()`.

    Example:
        >>> texts = ("isinstance(g, Rank | None)", "isinstance(g, int)")
        >>> [asks_for_a_goal(ast.parse(text).body[0].value) for text in texts]
        [True, False]
    """
    if isinstance(node, ast.MatchClass):
        return _last(node.cls) in GOALS
    if not (isinstance(node, ast.Call) and _last(node.func) == "isinstance" and len(node.args) == 2):
        return False
    return any(_last(part) in GOALS for part in ast.walk(node.args[1]))


def asks_for_a_unit(node: ast.AST) -> bool:
    """A comparison that tells kinds of units apart: with "filter" and the like, or with `Units.filter`.

    Example:
        >>> texts = ("units.kind != 'weight'", "u == Units.rank", "row.kind == 'step'", "units != WEIGHT")
        >>> [asks_for_a_unit(ast.parse(text).body[0].value) for text in texts]
        [True, True, False, True]
    """
    if not isinstance(node, ast.Compare):
        return False
    if not all(isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn | ast.Is | ast.IsNot) for op in node.ops):
        return False
    sides = [node.left, *node.comparators]
    parts = [
        part for side in sides for part in ([side, *side.elts] if isinstance(side, ast.Tuple | ast.Set) else [side])
    ]
    if any(_of_units(part) for part in parts):
        return True
    words = any(
        (isinstance(part, ast.Constant) and part.value in KINDS) or _last(part).lower() in KINDS for part in parts
    )
    asked = any(_last(side) in ("kind", "units", "unit") for side in sides)
    whose = any(
        isinstance(side, ast.Attribute) and side.attr == "kind" and "unit" in _last(side.value) for side in sides
    )
    return asked and (words or whose)


def _of_units(node: ast.AST) -> bool:
    """`Units.filter`, and `Units.filter.text` and `.kind`."""
    while isinstance(node, ast.Attribute):
        if _last(node.value) == "Units" and node.attr in KINDS:
            return True
        node = node.value
    return False


def deepest(classes: list[tuple[Module, ast.ClassDef]]) -> list[str]:
    """The longest line of classes of ours, from the base down; a base that is another's ends it."""
    own: dict[str, list[tuple[Module, ast.ClassDef]]] = {}
    for module, node in classes:
        own.setdefault(node.name, []).append((module, node))

    def line(module: Module, node: ast.ClassDef, below: frozenset[int]) -> list[str]:
        above: list[str] = []
        for base in node.bases:
            given = _last(base.value if isinstance(base, ast.Subscript) else base)
            found = _base(module, given, own.get(given, []))
            if found is not None and id(found[1]) not in below:
                above = max(above, line(*found, below | {id(node)}), key=len)
        return [*above, node.name]

    return max((line(m, n, frozenset()) for m, n in classes), key=len, default=[])


def _base(module: Module, name: str, found: list[tuple[Module, ast.ClassDef]]) -> tuple[Module, ast.ClassDef] | None:
    """Which of the classes of this name a module means: its own, that of the module it imports from, the only one."""
    for other, node in found:
        if other is module:
            return other, node
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == name for a in node.names):
            origin = module.origin(node)
            if not origin.startswith(module.name.partition(".")[0]):
                return None  # another package's class of the same name
            for other, cls in found:
                if other.name == origin or len(found) == 1:
                    return other, cls
    return None


def public(node: ast.ClassDef) -> list[str]:
    """The names without underscore that a class defines."""
    found: set[str] = set()
    for one in node.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(one.name)
        elif isinstance(one, ast.AnnAssign):
            found.add(_last(one.target))
        elif isinstance(one, ast.Assign):
            found |= {_last(target) for target in one.targets}
    return sorted(name for name in found if name and not name.startswith("_"))


def _where(known: dict[str, Module], asks: Callable[[ast.AST], bool], rooms: tuple[str, ...]) -> list[str]:
    return [
        f"{module.place}:{node.lineno}"  # type: ignore[attr-defined]
        for module in known.values()
        if not module.place.startswith(rooms)
        for node in ast.walk(module.tree)
        if asks(node)
    ]


def _inside_functions(tree: ast.AST) -> list[ast.AST]:
    """Imports inside functions."""
    found = {
        id(node): node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in _running(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    return list(found.values())


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _repeated(paths: Iterable[str]) -> list[str]:
    """The last names of dotted paths that stand for several things, with their number; PARALLEL ones are one thing."""
    places: dict[str, list[str]] = {}
    for path in paths:
        places.setdefault(path.rpartition(".")[2], []).append(path.partition(".")[2])
    found = {name: len(ours) for name, ours in places.items() if len(ours) > 1 and not _parallel(ours)}
    return [f"{name} x{n}" for name, n in sorted(found.items(), key=lambda item: (-item[1], item[0]))]


def _parallel(places: list[str]) -> bool:
    return any(set(places) <= set(allowed) for allowed in PARALLEL.values())


# walking


class Walk:
    """Which functions below a folder run, in what order."""

    def __init__(self, folder: Path) -> None:
        self.folder = f"{folder}{os.sep}"
        self.calls: list[tuple[str, str]] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        # Names in angle brackets are lambdas, comprehensions and the like.
        if event == "call" and code.co_filename.startswith(self.folder) and not code.co_name.startswith("<"):
            self.calls.append((code.co_filename, f"{code.co_name} {code.co_firstlineno}"))

    @contextlib.contextmanager
    def taken(self) -> Iterator[Walk]:
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            yield self
        finally:
            sys.setprofile(before)

    def files(self) -> dict[str, int]:
        """The files in the order of their first call, with the number of calls into each."""
        return dict(Counter(file.removeprefix(self.folder) for file, _ in self.calls))

    def counted(self) -> dict[str, int]:
        files = [file for file, _ in self.calls]
        changes = sum(one != other for one, other in pairwise(files))
        return {
            "files": len(set(files)),
            "functions": len(set(self.calls)),
            "calls": len(self.calls),
            "changes of file": changes,
        }


def walks() -> dict[str, Walk]:
    """The walks through the library that is installed."""
    import torch

    import softprune

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder = Path(softprune.__file__).parent
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        # Once for the imports and for what is remembered from call to call.
        _walk_all(folder, Path(place) / "first")
        return _walk_all(folder, Path(place) / "second")


def _walk_all(folder: Path, place: Path) -> dict[str, Walk]:
    import torch
    from torch import nn

    import softprune
    from softprune.cli import app

    found: dict[str, Walk] = {}

    def walk(name: str, do: Callable[[], Any]) -> Any:
        way = Walk(folder)
        with way.taken():
            result = do()
        found[name] = way
        return result

    def forward_backward() -> None:
        nn.functional.cross_entropy(model(x), labels).backward()

    torch.manual_seed(0)
    place.mkdir()
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x, labels = torch.randn(4, 1, 8, 8), torch.randint(16, (4,))
    method, goal = softprune.STR(), softprune.Sparsity(0.9)
    sparsifier = walk("sparsify", lambda: softprune.sparsify(model, method, goal=goal))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    walk("attach", lambda: sparsifier.attach(optimizer, total_steps=10))
    for step in range(10):
        optimizer.zero_grad()
        if step == 3:  # while the goal is approached
            walk("forward and backward", forward_backward)
            walk("optimizer.step", optimizer.step)
        else:
            forward_backward()
            optimizer.step()
    plain = walk("bake", sparsifier.bake)

    run, page, file = place / "run", place / "page.html", place / "network.spx"
    command = ["train", "digits/str-goal", "epochs=1", "data.subset=128", "threads=1", "--out", str(run)]
    walk("softprune train, two steps", lambda: app(command, standalone_mode=False))
    walk("softprune report", lambda: app(["report", str(run), "--out", str(page)], standalone_mode=False))
    walk("export", lambda: softprune.export(plain, file, example=x))
    # Tuning takes as many calls as there is time.
    engine = walk("load", lambda: softprune.load(file, threads=1, tune=False))
    walk("first call", lambda: engine(x.numpy()))
    walk("second call", lambda: engine(x.numpy()))
    return found


# telling


def flat(numbers: dict[str, float], ways: dict[str, dict[str, int]]) -> dict[str, float]:
    """All figures by one name each, as limits have them."""
    return numbers | {f"{name}: {what}": n for name, way in ways.items() for what, n in way.items()}


def exceeded(found: dict[str, float], limits: dict[str, float]) -> list[str]:
    """A line for every figure that is above its limit, or that has one and was not counted."""
    return [
        f"{name}: {found.get(name, 'not counted')}, at most {limit}"
        for name, limit in limits.items()
        if found.get(name, limit + 1) > limit
    ]


def table(numbers: dict[str, float], details: dict[str, list[str]], ways: dict[str, dict[str, int]]) -> str:
    """All of it as text."""
    wide = max(map(len, numbers))
    lines = [f"{name:<{wide}}  {value:>9,}" for name, value in numbers.items()]
    if ways:
        columns = list(next(iter(ways.values())))
        wide = max(map(len, ways))
        lines += ["", f"{'walk':<{wide}}  {'  '.join(columns)}"]
        for name, way in ways.items():
            lines.append(f"{name:<{wide}}  {'  '.join(f'{way[c]:>{len(c)},}' for c in columns)}")
    for name, counted in details.items():
        lines += ["", f"{name}:", *(f"  {line}" for line in counted or ["none"])]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path, default=ROOT / "src" / "softprune", help="the package's folder")
    parser.add_argument("--json", type=Path, help="write the figures into this file")
    parser.add_argument("--no-walks", action="store_true", help="read the source only")
    parser.add_argument("--check", nargs="?", const="", metavar="LIMITS", help="exit with 1 above a limit")
    given = parser.parse_args(arguments)
    numbers, details = figures(given.source)
    ways = {} if given.no_walks else {name: way.counted() for name, way in walks().items()}
    found = flat(numbers, ways)
    print(table(numbers, details, ways))
    if given.json:
        given.json.write_text(json.dumps({"figures": found, "details": details}, indent=2) + "\n", encoding="utf-8")
    if given.check is None:
        return 0
    limits = json.loads(Path(given.check).read_text(encoding="utf-8")) if given.check else dict(LIMITS)
    if given.no_walks:
        limits = {name: limit for name, limit in limits.items() if ": " not in name}
    above = exceeded(found, limits)
    print(
        "\n".join(["", *(f"above its limit: {line}" for line in above)] if above else ["", "all within their limits"])
    )
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
