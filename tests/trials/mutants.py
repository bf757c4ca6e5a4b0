"""Change one thing in the sources at a time, and see whether a test fails: what survives, nobody would have noticed."""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import platform
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

EPILOG = """
Each mutant is the source with one change: another comparison, another sign, a condition the other way round, a constant
one larger, no call, no argument, no return value, ... The tests that reach the changed statement run against it, the
quickest first, up to the first that fails. It is

  killed     when a test fails, or nothing can be imported any more,
  timeout    when a test takes far longer than it did; it counts as killed,
  survived   when all of them pass, or none reaches it,
  equivalent when it survived and is listed below as one that changes nothing which may be relied on, with the reason.

  python tests/trials/mutants.py --out benchmarks/results/trials/mutants.json --map /tmp/map.json
  python tests/trials/mutants.py --out benchmarks/results/trials/mutants.json --map /tmp/map.json --survivors
  python tests/trials/mutants.py --only ops/threshold.py --list                       # what there is to be tried

Which test reaches what is found out first, by one traced run of the tests, and kept in --map; only files of tests that
are new or changed are run again for it. The same command goes on where a stopped one was; what was found out about a
source that has changed since is forgotten. In a working tree that others are changing, give it a copy with --root.
"""

HERE = Path(__file__).resolve()
# Imported once, before anything is forked: a mutant costs its tests and not the start of torch.
WARM = (
    "numpy",
    "torch",
    "torch._dynamo",
    "torch.nn.utils.parametrize",
    "torch.optim.swa_utils",
    "torch.testing",
    "hypothesis",
)
# Folders of tests that are meant to find out about the rooms.
TESTS = (
    "tests/ops", "tests/methods", "tests/core", "tests/goals", "tests/contract", "tests/golden", "tests/budget",
    "tests/structure", "tests/reporting", "tests/train/config",
)  # fmt: skip
ROOMS = {"ops": "ops/", "methods": "methods/", "goals": "goals/"}
# Outcomes, as the file has them: one letter for each mutant, in the order of the source.
KILLED, TIMEOUT, SURVIVED, UNTRIED = "ktsu"

# What survives and changes nothing that may be relied on: the file, part of the line, the beginning of the change, and
# why. The line and not its number, so that the list outlives changes elsewhere.
EQUIVALENT: tuple[tuple[str, str, str, str], ...] = (
    ("ops/threshold.py", "spread = AUTO_DEVIATIONS", "w.numel() > 1 -> w.numel() >= 1",
     "the deviation of one number is NaN, for which k is 1 as well"),
    ("ops/threshold.py", "spread = AUTO_DEVIATIONS", "0.0 -> 1.0", "k is 1 without a spread"),
    ("ops/threshold.py", "least = torch.finfo", "torch.finfo(w.dtype).tiny * w.sign() -> ",
     "signs are 1 or -1 where it is used: a weight of 0 lives only under a threshold of 0, and is then used as it is"),
    ("ops/recurrence/fused.py", "hidden = u.shape[0]", "0 -> 1", "u is square"),
    ("ops/recurrence/fused.py", "call = _call(", "0 -> 1", "u is square"),
    ("ops/recurrence/fastgrnn.py", "h = projected.new_zeros", "0 -> 1", "u is square"),
    ("ops/recurrence/fused.py", "return (None,) * 8", "8 -> 9", "torch takes more of None than there are inputs"),
    ("ops/recurrence/fused.py", "break", "break -> continue", "it goes on asking an empty queue, three times more"),
    ("ops/threshold.py", "leak = leak if plain else leak.item()", "plain -> not plain",
     "a tensor leaks as much as the number in it; reading it is only quicker"),
    ("ops/threshold.py", "one_number = ", "1 -> 2", "without the shorter way for one number the longer gives the same"),
    ("ops/threshold.py", "one_number = ",
     "grad.dtype == shrunk.dtype == alpha.dtype -> grad.dtype != shrunk.dtype == alpha.dtype",
     "without the shorter way for one number the longer gives the same"),
    ("ops/threshold.py", "return a.view(-1), b.view(-1)", "return (a.view(-1), b.view(-1)) -> return None",
     "without the shorter way for tensors of one layout the longer gives the same"),
    ("ops/threshold.py", "layout = {4: torch.channels_last", "4 -> 5",
     "without the shorter way for channels last the longer gives the same"),
    ("ops/threshold.py", "layout = {4: torch.channels_last", "5 -> 6",
     "without the shorter way for channels last the longer gives the same"),
    ("ops/threshold.py", "return a.as_strided((a.numel(),)",
     "return (a.as_strided((a.numel(),), (1,)), b.as_strided((b.numel(),), (1,))) -> return None",
     "without the shorter way for channels last the longer gives the same"),
    ("methods/masks.py", "got, left = dict.fromkeys(by, 0)", "0 -> 1", "each name is given its share further below"),
    ("methods/transforms.py", "ratios = ",
     "(w.double().abs() / alpha).nan_to_num(nan=0.0) -> (w.double().abs() / alpha).nan_to_num()",
     "0 is what it takes for NaN by itself"),
    ("goals/select.py", "key = np.nan_to_num",
     "np.nan_to_num(np.concatenate(parts), nan=0.0, posinf=math.inf) -> np.nan_to_num(np.concatenate(parts), posinf",
     "0 is what it takes for NaN by itself"),
    ("methods/acdc.py", "return 1.0 if int(", "progress < 1.0 - self.final - 2 * slot -> progress <= 1.0",
     "an odd number of slots has passed there, so it is 0 in any case"),
    ("methods/acdc.py", "if not (0.0 <= self.warmup", "0.0 <= self.warmup < 1.0 -> 0.0 <= self.warmup <= 1.0",
     "a warmup of 1 leaves nothing for final, which is refused then"),
    ("methods/acdc.py", "if not (0.0 <= self.warmup", "1.0 -> 2.0",
     "a warmup above 1 leaves less than nothing for final, which is refused then"),
    ("methods/dsr.py", "gone.view(-1)[", "1.0 -> 2.0", "any number below 0 lies behind every size"),
    ("methods/sparse_evolution.py", "kept = largest(", "1.0 -> 2.0", "any number below 0 lies behind every size"),
    ("methods/masks.py", "largest = max(", "0.0 -> 1.0", "without claims there is nobody to share"),
    ("methods/snfs.py", "own = min(sparsity, rate)", "sparsity < 0.2 -> sparsity <= 0.2",
     "0.2 is not 1 minus any number of double precision"),
    ("methods/transforms.py", "if self.leak is not None and", "self.leak is not None and mode.until is not None -> ",
     "it has a leak if and only if the mode has an until"),
    ("methods/vd.py", "self.log_sigma2 = nn.Parameter", "False -> True", "a parameter of it has its own"),
    ("goals/base.py", "if progress >= self.end", "progress >= self.end -> progress > self.end",
     "at its end the curve is 1 as well"),
    ("goals/base.py", "if level >= last", "level >= last -> level > last",
     "on the last level the formula gives 1 as well"),
    ("goals/base.py", "return fixed + sum(", "fixed + sum((cost.at(0.0) for cost in costs)) -> ",
     "no weights cost nothing"),
    ("goals/goal.py", "hint = ", "0 < number < 1 -> 0 < number <= 1", "1 is a whole number, and not refused"),
    ("ops/threshold.py", "return grad, None, None", "return (grad, None, None) -> return None",
     "it runs for thresholds with a gradient alone"),
    ("ops/recurrence/fused.py", "KEPT = 4", "4 -> 5", "how many arrays wait is a matter of memory and time alone"),
    ("ops/recurrence/fused.py", "def fused(", "torch.library.custom_op('softprune::fastgrnn', mutates_args=(), dev",
     "tensors of other devices do not come here"),
    ("methods/transforms.py", "def _apply(", "True -> False", "a transform has no modules inside"),
    ("goals/constraint.py", "if asked(schedule, 1.0) != 1.0", "1.0 -> 2.0",
     "what lies after the end is asked at the end"),
    ("goals/constraint.py", "density = equal_density(joint", "equal_density(joint.at_density, final, halvings=20) -> ",
     "more halvings find the same density, closer than a unit"),
    ("goals/scan.py", "if weights < WORTH_THREADS or threads == 1", "weights < WORTH_THREADS or threads == 1 -> ",
     "threads change how long it takes alone"),
    ("goals/scan.py", "return Rows(flat(w), count,", "1 -> 2", "there are several rows here, or no weights"),
    ("goals/select.py", "_windows: dict[Bounds, Window]", "False -> True", "nobody passes or prints it"),
    ("goals/solve.py", "selection = select([ranked], floor", "select([ranked], floor, guess=guess) -> ",
     "a guess saves time and changes nothing"),
    ("goals/scan.py", "PIECE = ", "17 -> 18", "pieces of any length find the same"),
    ("goals/select.py", "weights_per_log: float = ", "0.0 -> 1.0", "without a last border it is not asked for"),
    ("goals/solve.py", "return {}", "return {} -> return None", "both say that nothing learns"),
    ("methods/masks.py", "named = chain(", "False -> True", "of a buffer with two names the first is always the same"),
    ("methods/snfs.py", "gone[target.name] = ", "1.0 -> 2.0", "any number below 0 lies behind every size"),
    ("methods/transforms.py", "lower = (alpha * ratio", "1.0 -> 2.0", "the floor is what is left from a step of 1 on"),
    ("goals/scan.py", "if count >= enough", "count >= enough -> count > enough", "then it is found a piece later"),
    ("goals/scan.py", "np.subtract(up.view", "np.subtract(up.view(np.int8), down.view(np.int8), out=sign, cast",
     "numpy turns small integers into floats without being told"),
    ("ops/threshold.py", "if leak == 1.0", "1.0 -> 2.0", "the longer way gives the whole gradient as well"),
    ("ops/threshold.py", "if layout is None or", "a.is_contiguous(memory_format=layout) -> ",
     "without the shorter way for channels last the longer gives the same"),
    ("ops/threshold.py", "plain = not leak.is_cpu", "not leak.is_cpu -> leak.is_cpu",
     "the composition has the same values and gradients, and is only slower"),
    ("ops/threshold.py", "if alpha.dim() > w.dim()", "alpha.dim() > w.dim() -> alpha.dim() >= w.dim()",
     "one number is the same for all with or without dimensions"),
    ("goals/scan.py", "WORTH_THREADS = ", "1 -> 2", "threads change how long it takes alone"),
    ("goals/scan.py", "WORTH_THREADS = ", "22 -> 23", "threads change how long it takes alone"),
    ("goals/scan.py", "if w.flat.device.type", "w.flat.device.type != 'cpu' -> w.flat.device.type == 'cpu'",
     "at once the same is found, and only later"),
    ("goals/select.py", "bounds = Bounds(low / 1.5", "low > 1e-30 -> low >= 1e-30",
     "bounds that are moved further find the same"),
    ("goals/solve.py", "selection = select([ranked", "select([ranked[one] for one in free], room, guess=guess) -> ",
     "a guess saves time and changes nothing"),
)  # fmt: skip

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.MatMult: ast.Mult,
}  # fmt: skip
# The negation of these is the other operator, which is a mutant already.
EXACT = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
# What words and types are made of: to change them says nothing about tests.
SILENT_CALLS = {"TypeVar", "NewType", "isinstance", "warn"}


@dataclass
class Site:
    """A place where something can be changed.

    Attributes:
        statement: whose header or whole it is in.
        before: the source there.
        after: what it becomes.
        apply: changes the tree.
    """

    statement: ast.stmt
    before: str
    after: str
    apply: Callable[[], None]


def sites(tree: ast.Module) -> list[Site]:
    """All places of a module, in the same order for the same source."""
    found: list[Site] = []
    for statement in tree.body:
        _in_statement(statement, tree.body, found)
    return found


def _in_statement(node: ast.stmt, block: list[ast.stmt], found: list[Site]) -> None:
    """Its own places, and those of the statements inside it."""
    place = block.index(node)

    def site(before: ast.AST, after: ast.AST, apply: Callable[[], None]) -> None:
        found.append(Site(node, ast.unparse(before), ast.unparse(after), apply))

    def instead(new: ast.stmt) -> None:
        ast.copy_location(new, node)
        site(node, new, lambda: block.__setitem__(place, new))

    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.Global | ast.Nonlocal):
        return
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
        return
    if isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation):
        return
    if isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Call):
            instead(ast.Pass())
        elif isinstance(node.value, ast.Constant):
            return  # a docstring
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        instead(ast.Return(ast.copy_location(ast.Constant(None), node)))
    elif isinstance(node, ast.Break):
        instead(ast.Continue())
    elif isinstance(node, ast.Continue):
        instead(ast.Break())
    elif isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
        other = ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value)
        site(node, other, lambda: setattr(node, "op", other.op))
    _turned_round(node, site)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_comment", "bases"):
            continue
        items = value if isinstance(value, list) else [value]
        for i, item in enumerate(items):
            if isinstance(item, ast.stmt):
                _in_statement(item, value, found)
            elif isinstance(item, ast.ExceptHandler | ast.match_case):
                for inner in list(item.body):
                    _in_statement(inner, item.body, found)
            elif isinstance(item, ast.arguments):
                _in_list(item.defaults, site)
                _in_list(item.kw_defaults, site)
            elif isinstance(item, ast.withitem):
                _in_field(item, "context_expr", site)
            elif isinstance(item, ast.expr):
                _in_expression(item, _putter(node, name, i if isinstance(value, list) else None), site)


Mark = Callable[[ast.AST, ast.AST, Callable[[], None]], None]
Put = Callable[[ast.expr], None]


def _putter(node: ast.AST, name: str, place: int | None) -> Put:
    """Puts another expression in the place of one."""
    return lambda new: setattr(node, name, new) if place is None else getattr(node, name).__setitem__(place, new)


def _in_field(node: ast.AST, name: str, site: Mark) -> None:
    _in_expression(getattr(node, name), _putter(node, name, None), site)


def _in_list(items: list[Any], site: Mark) -> None:
    for i, item in enumerate(items):
        if isinstance(item, ast.expr):
            _in_expression(item, lambda new, i=i: items.__setitem__(i, new), site)


def _in_expression(node: ast.expr, put: Put, site: Mark) -> None:
    def instead(new: ast.expr) -> None:
        ast.copy_location(new, node)
        for inner in ast.walk(new):
            if isinstance(inner, ast.expr) and not hasattr(inner, "lineno"):
                ast.copy_location(inner, node)
        site(node, new, lambda: put(new))

    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            instead(ast.Constant(not node.value))
        elif isinstance(node.value, int | float):
            instead(ast.Constant(node.value + 1))
        return
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            instead(ast.Compare(node.left, [*node.ops[:i], COMPARISONS[type(operator)](), *node.ops[i + 1 :]],
                                node.comparators))  # fmt: skip
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and not _is_text(node):
        instead(ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right))
    elif isinstance(node, ast.BoolOp):
        instead(ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))
    elif isinstance(node, ast.UnaryOp):
        instead(node.operand)
    elif isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in SILENT_CALLS:
            return
        if isinstance(node.func, ast.Name) and called in SWAPPED:
            instead(ast.Call(ast.Name(SWAPPED[called], ast.Load()), node.args, node.keywords))
        for i, keyword in enumerate(node.keywords):
            if keyword.arg == "strict" and called == "zip":
                continue  # says what holds anyway
            flag = isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, bool)
            if keyword.arg is not None and not flag:  # a flag is turned round, which is the same
                instead(ast.Call(node.func, node.args, [*node.keywords[:i], *node.keywords[i + 1 :]]))
            _in_field(keyword, "value", site)
        _in_field(node, "func", site)
        _in_list(node.args, site)
        return
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("Literal", "ClassVar"):
        return
    _turned_round(node, site)
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.expr):
            _in_field(node, name, site)
        elif isinstance(value, list):
            _in_list(value, site)
            for item in value:
                if isinstance(item, ast.comprehension):
                    _in_field(item, "iter", site)
                    _in_list(item.ifs, site)


def _turned_round(node: ast.AST, site: Mark) -> None:
    """Conditions, where turning them round is no mutant already."""
    if isinstance(node, ast.IfExp | ast.If | ast.While):
        tests = [(node.test, _putter(node, "test", None))]
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        tests = [(c, _putter(g, "ifs", i)) for g in node.generators for i, c in enumerate(g.ifs)]
    else:
        return
    for test, put in tests:
        single = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], EXACT)
        negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        if not single and not negated and not isinstance(test, ast.Constant):
            new = ast.copy_location(ast.UnaryOp(ast.Not(), test), test)
            site(test, new, lambda put=put, new=new: put(new))


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


@dataclass(frozen=True)
class Mutant:
    """One change to one source.

    Attributes:
        number: which of the places of its source.
        lines: of the statement, without those of the statements inside it.
        before: the source at the place.
        after: what it becomes.
    """

    source: Source
    number: int
    lines: range
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.source.name}:{self.lines.start}: {_short(self.before)}  ->  {_short(self.after)}"

    def code(self) -> CodeType:
        """The module with the change."""
        tree = ast.parse(self.source.text)
        sites(tree)[self.number].apply()
        return self.source.compiled(tree)

    @cached_property
    def functions(self) -> list[tuple[CodeType, CodeType]] | None:
        """The functions that it changes, before and after; None if it changes what a module or a class is made of."""
        found: list[tuple[CodeType, CodeType]] = []
        alike = _differing(self.source.code, self.code(), found)
        same_cells = all(a.co_freevars == b.co_freevars for a, b in found)
        return found if alike and same_cells else None

    @property
    def listed(self) -> tuple[str, str, str, str] | None:
        """The entry of the list of equivalent ones that means it."""
        line = self.source.text.splitlines()[self.lines.start - 1].strip()
        change = f"{_short(self.before)} -> {_short(self.after)}"
        for entry in EQUIVALENT:
            file, at, what, _ = entry
            if file == self.source.name and at in line and change.startswith(what):
                return entry
        return None

    @property
    def reason(self) -> str | None:
        """Why it changes nothing, if it is listed."""
        return None if self.listed is None else self.listed[-1]


def _differing(a: CodeType, b: CodeType, found: list[tuple[CodeType, CodeType]]) -> bool:
    """Collect the outermost functions that differ; whether everything around them is the same."""
    if a.co_flags & 1:  # a function, and no module or body of a class
        if a != b:
            found.append((a, b))
        return True
    plain = [[c if not isinstance(c, CodeType) else None for c in code.co_consts] for code in (a, b)]
    if a.co_code != b.co_code or repr(plain[0]) != repr(plain[1]) or a.co_names != b.co_names:
        return False
    inner = [[c for c in code.co_consts if isinstance(c, CodeType)] for code in (a, b)]
    return all(_differing(x, y, found) for x, y in zip(*inner, strict=True))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 90 else f"{text[:87]}..."


@dataclass(frozen=True)
class Source:
    """A file that is mutated.

    Attributes:
        path: of the file.
        name: inside its package, with slashes.
        module: its name for an import.
        room: what it belongs to.
    """

    path: Path
    name: str
    module: str
    room: str

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def compiled(self, tree: ast.Module) -> CodeType:
        return compile(ast.fix_missing_locations(tree), str(self.path), "exec", dont_inherit=True)

    @cached_property
    def code(self) -> CodeType:
        return self.compiled(ast.parse(self.text))

    @cached_property
    def mutants(self) -> list[Mutant]:
        found = sites(ast.parse(self.text))
        return [Mutant(self, i, _own_lines(s.statement), s.before, s.after) for i, s in enumerate(found)]


def _own_lines(statement: ast.stmt) -> range:
    inner = [getattr(statement, name) for name in ("body", "orelse", "finalbody", "handlers")
             if getattr(statement, name, None)]  # fmt: skip
    last = min((block[0].lineno - 1 for block in inner), default=statement.end_lineno)
    return range(statement.lineno, max(statement.lineno, last or 0) + 1)


@dataclass(frozen=True)
class Project:
    """What is mutated, and what may find out.

    Attributes:
        root: of the repository; the package is in its folder src.
        package: its name.
        rooms: name -> folder inside the package.
        tests: folders of tests.
    """

    root: Path
    package: str
    rooms: Mapping[str, str]
    tests: Sequence[str]

    @cached_property
    def sources(self) -> list[Source]:
        top, found = self.root / "src" / self.package, []
        for room, folder in self.rooms.items():
            for path in sorted((top / folder).rglob("*.py")):
                name = path.relative_to(top).as_posix()
                module = ".".join((self.package, *path.relative_to(top).with_suffix("").parts))
                found.append(Source(path, name, module.removesuffix(".__init__"), room))
        return found

    def test_files(self) -> dict[str, str]:
        """The files of tests, and what they hold in short."""
        paths = sorted(p for folder in self.tests for p in (self.root / folder).rglob("test_*.py"))
        return {p.relative_to(self.root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()[:16] for p in paths}


# Tests that take longer are left out: a mutant that only they would find costs more than it says.
LONGEST = 2.5


# Tests for a mutant for which everything is imported anew: each of their files is, too.
MOST_ANEW = 120


class Reach:
    """Which tests reach which lines, and how long they take.

    Args:
        project: whose.
        path: of a file that keeps it.
        patience: seconds of the processor after which a test hangs, on top of five times what it takes.
    """

    def __init__(self, project: Project, path: Path | None, patience: float) -> None:
        self._project, self._path, self.patience = project, path, patience
        self._known: dict[str, Any] = {"sources": {}, "files": {}, "tests": {}}
        if path is not None and path.is_file():
            self._known = json.loads(path.read_text(encoding="utf-8"))
        self.broken: set[str] = set()

    def find_out(self, scratch: Path) -> None:
        """Run the tests that are new or changed, all of them if a source is."""
        sources = {s.name: s.digest for s in self._project.sources}
        if self._known["sources"] != sources:
            self._known = {"sources": sources, "files": {}, "tests": {}}
        files = self._project.test_files()
        stale = [name for name, digest in files.items() if self._known["files"].get(name) != digest]
        tests = self._known["tests"].items()
        self._known["tests"] = {t: entry for t, entry in tests if t.partition("::")[0] not in stale}
        if stale:
            say(f"which lines the tests of {len(stale)} files reach is found out first")
            watched = {str(source.path): source.name for source in self._project.sources}
            for line in forked(lambda send: _trace(self._project, stale, watched, scratch, send), scratch):
                test, entry = json.loads(line)
                self._known["tests"][test] = entry
        self._known["files"] |= files
        self._files = set(files)
        if self._path is not None:
            write(self._path, self._known)

    @cached_property
    def seconds(self) -> dict[str, float]:
        known = self._known["tests"].items()
        here = {t: entry for t, entry in known if t.partition("::")[0] in self._files}
        return {t: entry["seconds"] for t, entry in here.items() if entry["passed"] and entry["seconds"] <= LONGEST}

    @cached_property
    def _by_line(self) -> dict[str, dict[int, list[str]]]:
        found: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        for test in self.seconds:
            for name, lines in self._known["tests"][test]["lines"].items():
                for line in lines:
                    found[name][line].append(test)
        return found

    def tests(self, mutant: Mutant, most: float, kills: Mapping[str, int], *, whole: bool) -> list[str]:
        """The tests that reach a mutant, as many as take so many seconds, those first that most likely kill it soon.

        Args:
            most: seconds.
            kills: what tests have killed so far of the same file.
            whole: take all tests that reach the file.
        """
        lines = self._by_line.get(mutant.source.name, {})
        reaching = {t for line in (lines if whole else mutant.lines) for t in lines.get(line, ())} - self.broken
        ranks: Counter[str] = Counter()
        order = []
        for test in sorted(reaching, key=lambda t: (self.seconds[t], t)):
            family = test.partition("[")[0]
            # Of many cases of one test the second says little that the first does not; and the tests that are named
            # after the file are meant for it; if they are for all of it, those of its room.
            file = Path(family.partition("::")[0])
            apart = 1 if mutant.source.path.stem in file.stem or (whole and mutant.source.room in file.parts) else 5
            order.append(((self.seconds[test] + 0.005) * apart * (1 + ranks[family]) / (1 + kills.get(test, 0)), test))
            ranks[family] += 1
        chosen, sum_ = [], 0.0
        for _, test in sorted(order):
            if chosen and sum_ + self.seconds[test] > most:
                continue
            if whole and len(chosen) >= MOST_ANEW:
                break
            chosen.append(test)
            sum_ += self.seconds[test]
        return chosen


class Hook:
    """Which lines of some files are run, by Python's own hook: nothing has to be installed for it.

    Args:
        paths: of the files.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._lines: dict[str, set[int]] = {path: set() for path in paths}
        self._inside = {path: self._in_file(mine) for path, mine in self._lines.items()}

    @staticmethod
    def _in_file(mine: set[int]) -> Callable[..., Any]:
        def line(frame: FrameType, event: str, _: object) -> Any:
            if event == "line":
                mine.add(frame.f_lineno)
            return line

        return line

    def _call(self, frame: FrameType, event: str, _: object) -> Any:
        return self._inside.get(frame.f_code.co_filename)

    def begin(self) -> None:
        for mine in self._lines.values():
            mine.clear()
        sys.settrace(self._call)
        threading.settrace(self._call)

    def end(self) -> dict[str, list[int]]:
        """The lines since it began, by file."""
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        return {path: sorted(mine) for path, mine in self._lines.items() if mine}


class Coverage:
    """The same by the package coverage, several times as fast."""

    def __init__(self, paths: Sequence[str]) -> None:
        from coverage import Coverage as Measured

        self._paths = list(paths)
        self._measured = Measured(data_file=None, include=self._paths, config_file=False, messages=False)
        self._measured.set_option("run:disable_warnings", ["no-data-collected"])

    def begin(self) -> None:
        self._measured.erase()
        self._measured.start()

    def end(self) -> dict[str, list[int]]:
        self._measured.stop()
        data = self._measured.get_data()
        return {path: sorted(lines) for path in self._paths if (lines := data.lines(path))}


def _trace(
    project: Project, files: Sequence[str], watched: Mapping[str, str], scratch: Path, send: Callable[[str], None]
) -> None:
    """Run tests, and send for each what it reaches."""
    tool = (Coverage if importlib.util.find_spec("coverage") else Hook)(list(watched))

    def too_long(*_: object) -> None:
        pytest.fail("too long")

    class Reaching:
        def __init__(self) -> None:
            self.passed: dict[str, bool] = {}
            signal.signal(signal.SIGPROF, too_long)

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
            begun = time.process_time()
            tool.begin()
            result = yield
            seconds = time.process_time() - begun
            reached = {watched[path]: lines for path, lines in tool.end().items()}
            passed = self.passed.get(item.nodeid, False)
            send(json.dumps([item.nodeid, {"seconds": round(seconds, 4), "passed": passed, "lines": reached}]))
            return result

        @pytest.hookimpl(wrapper=True)
        def pytest_pyfunc_call(self) -> Iterator[None]:
            signal.setitimer(signal.ITIMER_PROF, LONGEST)
            try:
                return (yield)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            self.passed[report.nodeid] = report.passed and self.passed.get(report.nodeid, True)

    # 1 means that some tests fail, which are left out; with any other code some may not have been run.
    if run_pytest(project, files, scratch, Reaching()) > 1:
        raise RuntimeError("the run that finds out which test reaches what did not come to its end")


def run_pytest(project: Project, what: Sequence[str], scratch: Path, *plugins: object) -> int:
    """Run tests in this process, which must be a child of its own."""
    os.chdir(project.root)
    os.environ.pop("PYTEST_ADDOPTS", None)  # meant for the tests that started this
    sys.path.insert(0, str(project.root / "src"))
    if "hypothesis" in sys.modules:
        from hypothesis import Phase, settings

        # The same examples each time; where one fails it need not become smaller.
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", database=None, derandomize=True, deadline=None, phases=phases)
        settings.load_profile("mutants")
    given = ["-q", "-s", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={project.root}"]
    return int(pytest.main([*given, f"--basetemp={scratch / 'temp'}", *what], plugins=list(plugins)))


def forked(work: Callable[[Callable[[str], None]], None], scratch: Path) -> Iterator[str]:
    """The lines that some work sends, in a child of its own: what it imports stays there.

    Raises:
        RuntimeError: if it fails, with what it said.
    """
    said = scratch / f"said-{time.monotonic_ns()}.txt"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.close(reading)
            _speak_into(said)
            with os.fdopen(writing, "w", encoding="utf-8") as pipe:

                def send(line: str) -> None:
                    pipe.write(line + "\n")
                    pipe.flush()

                work(send)
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    os.close(writing)
    try:
        with os.fdopen(reading, encoding="utf-8") as pipe:
            for line in pipe:
                yield line.rstrip("\n")
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"the trial itself failed: {said.read_text(errors='replace')[-3000:]}")


def _speak_into(path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


class Watch:
    """Ends this process at the first test that fails or hangs, with the number of the test in memory that is shared.

    Args:
        seconds: that each test takes.
        patience: seconds that each may take on top of five times that.
    """

    def __init__(self, seconds: Mapping[str, float], patience: float) -> None:
        self._seconds, self._patience = seconds, patience
        # A file that names are written to, instead of an end at the first failure.
        self.failed: Path | None = None
        for number in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)

    def allow(self, seconds: float) -> None:
        """By the time of the processor, since others may be busy on it; what sleeps is given more."""
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, 60 + 20 * seconds)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.allow(self._patience + 5.0 * self._seconds.get(item.nodeid, 1.0))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        # What pytest does after the last test takes longer than many of them.
        os._exit(int(exitstatus))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.failed is None:
            os._exit(1)
        if report.failed and self.failed is not None:
            with self.failed.open("a", encoding="utf-8") as file:
                file.write(f"{report.nodeid}\n")


def _outcome(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return SURVIVED
    return TIMEOUT if -code in (signal.SIGPROF, signal.SIGALRM) else KILLED


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (4 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class InPlace:
    """Mutants of functions: the code of living functions is exchanged, in a fork of a process that has all tests.

    Args:
        mutants: with the functions that each changes.
        reach: which tests reach them.
        most: seconds of tests for each.
        send: takes the outcomes; "" for one whose functions are not there.
    """

    def __init__(self, mutants: Sequence[Mutant], reach: Reach, most: float, send: Callable[[str], None]) -> None:
        self._mutants, self._reach, self._most, self._send = mutants, reach, most, send
        self._sound: set[str] = set()
        self._kills: dict[str, Counter[str]] = defaultdict(Counter)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        self._reach.broken |= set(self._reach.seconds) - set(self._items)
        functions: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        gc.collect()
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType):
                functions[_key(thing.__code__)].append(thing)
        gc.freeze()  # so that a child does not copy what it only looks at
        for mutant in self._mutants:
            changes = mutant.functions or []
            pairs = [(function, new) for old, new in changes for function in functions[_key(old)]]
            outcome = self._outcome(mutant, pairs) if pairs else ""
            self._send(f"{mutant.source.name} {mutant.number} {outcome}")
        return True

    def _outcome(self, mutant: Mutant, pairs: Sequence[tuple[FunctionType, CodeType]]) -> str:
        kills = self._kills[mutant.source.name]
        while True:
            tests = self._reach.tests(mutant, self._most, kills, whole=False)
            if not tests:
                return UNTRIED
            outcome, at = self._run(tests, pairs)
            if outcome == SURVIVED:
                return outcome
            # A test that fails by itself here proves nothing.
            if tests[at] in self._sound or self._run([tests[at]], ())[0] == SURVIVED:
                self._sound.add(tests[at])
                kills[tests[at]] += 1
                return outcome
            say(f"fails without a change, and is left out: {tests[at]}")
            self._reach.broken.add(tests[at])

    def _run(self, tests: Sequence[str], pairs: Sequence[tuple[FunctionType, CodeType]]) -> tuple[str, int]:
        """What becomes of tests, and the place of the one that failed."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                _limit_memory()
                gc.disable()  # it would touch, and so copy, what the child shares with its parent
                for function, new in pairs:
                    function.__code__ = new
                items = [self._items[test] for test in tests]
                watch = Watch(self._reach.seconds, self._reach.patience)
                items[0].config.pluginmanager.register(watch)
                for item, following in zip(items, [*items[1:], None], strict=True):
                    os.write(writing, b".")
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                os._exit(0)
            os._exit(1)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            _, status = os.waitpid(child, 0)
            begun = len(pipe.read())
        return _outcome(status), max(0, begun - 1)


def _key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_name, code.co_firstlineno


class _Changed(importlib.abc.MetaPathFinder):
    """Imports one module from other code than its file has."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> Any:
        if name != self._mutant.source.module:
            return None
        mutant = self._mutant

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> CodeType:
                return mutant.code()

        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None and spec.origin is not None
        return importlib.util.spec_from_file_location(
            name, spec.origin, loader=Loader(name, spec.origin),
            submodule_search_locations=spec.submodule_search_locations,
        )  # fmt: skip


def run_anew(project: Project, mutant: Mutant | None, tests: Sequence[str], reach: Reach, scratch: Path) -> str:
    """Import everything with one module changed, and run tests: for what happens when a module is imported.

    Without a mutant the tests that fail are left out from then on.
    """
    failed = scratch / "failed.txt"
    failed.write_text("")
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            _speak_into(scratch / "said-anew.txt")
            _limit_memory()
            watch = Watch(reach.seconds, reach.patience)
            watch.allow(10.0 + 10.0 * reach.patience)
            if mutant is None:
                watch.failed = failed
            else:
                sys.meta_path.insert(0, _Changed(mutant))
            os._exit(run_pytest(project, [*tests], scratch, watch))
        os._exit(1)
    outcome = _outcome(os.waitpid(child, 0)[1])
    if mutant is None and outcome != SURVIVED:
        found = set(failed.read_text(encoding="utf-8").splitlines()) or set(tests)
        say(f"fail without a change, and are left out: {len(found)} tests, such as {min(found)}")
        reach.broken |= found
    return outcome


class Book:
    """The outcomes by file, in a JSON file that a stopped trial goes on from."""

    def __init__(self, path: Path | None, project: Project) -> None:
        self.path, self.project = path, project
        self.outcomes = {s.name: ["."] * len(s.mutants) for s in project.sources}
        self.seconds, self._begun, self.facts = 0.0, time.perf_counter(), dict[str, Any]()
        self._written = time.perf_counter()
        # Where not all are tried: how those that are were drawn, each time of those that were left.
        self.draws: list[dict[str, Any]] = []
        # By room: tests that are written for survivors are no news of the mutants that were not drawn.
        self.first: Counter[str] = Counter()
        if path is not None and path.is_file():
            before = json.loads(path.read_text(encoding="utf-8"))
            self.seconds, self.draws = before["seconds"], before.get("draws", [])
            self.first = Counter(before.get("killed at the first try", {}))
            for source in project.sources:
                entry = before["files"].get(source.name)
                if entry and entry["source"] == source.digest and len(entry["outcomes"]) == len(source.mutants):
                    self.outcomes[source.name] = list(entry["outcomes"])

    def add(self, mutant: Mutant, outcome: str) -> None:
        if self.of(mutant) == "." and outcome in (KILLED, TIMEOUT):
            self.first[mutant.source.room] += 1
        self.outcomes[mutant.source.name][mutant.number] = outcome
        if time.perf_counter() - self._written > 10.0:
            self.write()

    def of(self, mutant: Mutant) -> str:
        return self.outcomes[mutant.source.name][mutant.number]

    def write(self) -> None:
        self._written = time.perf_counter()
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write(self.path, self.summary())

    def counts(self, sources: Sequence[Source]) -> dict[str, Any]:
        """How many mutants of some sources came to what."""
        mutants = [m for s in sources for m in s.mutants]
        tried = [m for m in mutants if self.of(m) != "."]
        dead = [m for m in tried if self.of(m) in (KILLED, TIMEOUT)]
        equivalent = sum(m.reason is not None for m in tried if self.of(m) in (SURVIVED, UNTRIED))
        return {
            "mutants": len(mutants),
            "tried": len(tried),
            "killed": len(dead),
            "of these by timeout": sum(self.of(m) == TIMEOUT for m in tried),
            "equivalent": equivalent,
            "survived": len(tried) - len(dead) - equivalent,
            "percent of all": _percent(len(dead), len(tried)),
            "percent of those not equivalent": _percent(len(dead), len(tried) - equivalent),
        }

    def _room(self, room: str) -> dict[str, Any]:
        counts = self.counts([source for source in self.project.sources if source.room == room])
        return {**counts, **_interval(self.first[room], counts["tried"], counts["mutants"])}

    def summary(self) -> dict[str, Any]:
        """Everything that the file says."""
        sources, files = self.project.sources, {}
        for source in sources:
            if not source.mutants:
                continue
            left = [m for m in source.mutants if self.of(m) in (SURVIVED, UNTRIED)]
            files[source.name] = {
                "source": source.digest,
                **self.counts([source]),
                "survivors": [_told(m, self.of(m)) for m in left if m.reason is None],
                "equivalents": [f"{_told(m, SURVIVED)}  ({m.reason})" for m in left if m.reason is not None],
                "outcomes": "".join(self.outcomes[source.name]),
            }
        return {
            "command": " ".join(["python", "tests/trials/mutants.py", *sys.argv[1:]]),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "processor": processor(),
            "versions": {"python": platform.python_version(), **self.facts},
            "seconds": round(self.seconds + time.perf_counter() - self._begun, 1),
            "draws": self.draws,
            "killed at the first try": dict(self.first),
            "rooms": {room: self._room(room) for room in self.project.rooms},
            "files": files,
        }


def _told(mutant: Mutant, outcome: str) -> str:
    line = mutant.source.text.splitlines()[mutant.lines.start - 1].strip()
    return f"{mutant}  in  {_short(line)}" + ("  (no test reaches it)" if outcome == UNTRIED else "")


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 1) if whole else 0.0


def _interval(dead: int, tried: int, mutants: int) -> dict[str, list[float]]:
    """Where some were drawn: what part of all is killed at the first try, by Wilson's interval for 95 %."""
    if not 0 < dead <= tried < mutants:
        return {}
    # A draw without replacement from not many more tells more than one from very many.
    size = tried * (mutants - 1) / (mutants - tried)
    share, z = dead / tried, 1.96
    middle = (share + z * z / (2 * size)) / (1 + z * z / size)
    half = z / (1 + z * z / size) * (share * (1 - share) / size + z * z / (4 * size * size)) ** 0.5
    ends = [round(100 * end, 1) for end in (middle - half, min(1.0, middle + half))]
    return {"percent at the first try": _percent(dead, tried), "of all of them, with 95 % confidence": ends}


def processor() -> str:
    """Its name. Not by the package's own function: nothing of it may be imported here."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def write(path: Path, content: Mapping[str, Any]) -> None:
    part = path.with_name(f".{path.name}.part")
    indent = 2 if "rooms" in content else None
    part.write_text(json.dumps(content, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)


def say(text: str) -> None:
    """One line on the error stream, at once."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def run(project: Project, wanted: Sequence[Mutant], book: Book, reach: Reach, *, most: float, scratch: Path) -> None:
    """Try mutants, and note what becomes of them."""
    reach.find_out(scratch)
    by_name = {(m.source.name, m.number): m for m in wanted}
    inside = [m for m in wanted if m.functions is not None]
    anew = [m for m in wanted if m.functions is None]
    files = sorted({t.partition("::")[0] for t in reach.seconds})
    begun, done = time.perf_counter(), 0

    def note(mutant: Mutant, outcome: str) -> None:
        nonlocal done
        book.add(mutant, outcome)
        done += 1
        if done % 20 == 0 or done == len(wanted):
            counts = Counter(book.of(m) for m in wanted)
            say(f"{done} of {len(wanted)} in {time.perf_counter() - begun:.0f} s: {dict(counts)}, {mutant.source.name}")

    if inside:
        loop = lambda send: run_pytest(project, files, scratch, InPlace(inside, reach, most, send))  # noqa: E731
        for line in forked(loop, scratch):
            name, number, outcome = line.split(" ")
            mutant = by_name[name, int(number)]
            if outcome:
                note(mutant, outcome)
            else:
                anew.append(mutant)  # made while something is imported, and gone since
    sound: set[str] = set()
    for mutant in anew:
        tests = reach.tests(mutant, most, {}, whole=True)
        if tests and mutant.source.name not in sound:
            run_anew(project, None, tests, reach, scratch)
            sound.add(mutant.source.name)
            tests = [t for t in tests if t not in reach.broken]
        note(mutant, run_anew(project, mutant, tests, reach, scratch) if tests else UNTRIED)


def _facts(package: str, project: Project) -> Callable[[Callable[[str], None]], None]:
    def work(send: Callable[[str], None]) -> None:
        sys.path.insert(0, str(project.root / "src"))
        send(str(getattr(importlib.import_module(package), "__version__", "")))

    return work


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="JSON file with what became of them; a stopped trial goes on from it")
    parser.add_argument("--map", type=Path, help="file that keeps which tests reach which lines")
    parser.add_argument("--only", action="append", help="a room, or part of a file's name; may be given several times")
    parser.add_argument("--survivors", action="store_true", help="try those again that survived, and no others")
    parser.add_argument("--sample", type=int, help="try only so many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default 0)")
    parser.add_argument("--most", type=float, default=5.0, help="seconds of tests for each mutant (default 5)")
    parser.add_argument("--patience", type=float, default=3.0, help="seconds more than usual until a test hangs")
    parser.add_argument("--list", action="store_true", help="print the mutants, and try none")
    parser.add_argument("--root", type=Path, default=HERE.parents[2], help="of the repository (default: this one)")
    parser.add_argument("--package", default="softprune", help="in the folder src of the root (default softprune)")
    rooms = " ".join(f"{name}={folder}" for name, folder in ROOMS.items())
    parser.add_argument(
        "--room", action="append", metavar="NAME=FOLDER", help=f"parts of the package; default: {rooms}"
    )
    parser.add_argument("--tests", action="append", help=f"folders of tests; default: {' '.join(TESTS)}")
    parser.add_argument("--warm", nargs="*", default=WARM, help="modules to import before anything is forked")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parsed(arguments)
    os.environ |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    rooms = dict(room.split("=", 1) for room in given.room) if given.room else ROOMS
    project = Project(given.root.resolve(), given.package, rooms, given.tests or TESTS)
    book = Book(given.out, project)
    sources = project.sources
    if given.only:
        sources = [s for s in sources if any(part == s.room or part in s.name for part in given.only)]
    wanted = [m for s in sources for m in s.mutants]
    if given.list:
        sys.stdout.write("".join(f"{mutant}\n" for mutant in wanted))
        return 0
    wanted = [m for m in wanted if book.of(m) in ((SURVIVED, UNTRIED) if given.survivors else ".")]
    if given.sample is not None:
        wanted = random.Random(given.seed).sample(wanted, min(given.sample, len(wanted)))
        if not given.survivors:
            book.draws.append({"of": given.only or [*rooms], "mutants": len(wanted), "seed": given.seed})
    for name in given.warm:
        importlib.import_module(name)
    scratch = Path(tempfile.mkdtemp(prefix="mutants-"))
    try:
        book.facts = {given.package: next(iter(forked(_facts(given.package, project), scratch)))}
        run(project, wanted, book, Reach(project, given.map, given.patience), most=given.most, scratch=scratch)
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        book.write()
    for room, counts in book.summary()["rooms"].items():
        sys.stdout.write(f"{room}: {json.dumps(counts)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
