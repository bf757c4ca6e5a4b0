"""The public names and what each can be called with, as text without the modules that things live in."""

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import softprune
from softprune.goals.base import Goal
from softprune.methods.base import Method

ROOT = Path(__file__).resolve().parents[2]
# Decisions tell of the past.
PAGES = [
    ROOT / "README.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if "decisions" not in p.parts),
    *sorted((ROOT / "examples").glob("*.py")),
]
# Their import takes ten seconds each, so their signatures are read from the source.
HEAVY = ("softprune.adapters.lightning", "softprune.adapters.transformers", "softprune.adapters.accelerate")
# What a method of one's own is derived from: its members are the interface that the page about methods describes.
INTERFACE = "softprune.methods.Method"
OPERATORS = ("__call__", "__getitem__", "__len__", "__iter__", "__contains__", "__enter__", "__exit__")


def documented() -> list[str]:
    """Every dotted path, deeper than the package, that the pages import or speak of and that exists."""
    found = {INTERFACE}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for module, names in re.findall(r"from (softprune\.[\w.]+) import ([\w, ]+)", text):
            found |= {f"{module}.{name.strip()}" for name in names.split(",")}
        found |= {path.rstrip(".") for path in re.findall(r"(?<![\w.])softprune(?:\.[A-Za-z]\w*){2,}", text)}
    found = {path for path in found if path.startswith(HEAVY) or _exists(path)}
    # A module is told from what it holds.
    return sorted(path for path in found if not any(other.startswith(f"{path}.") for other in found))


def lines_of(paths: Iterable[str]) -> list[str]:
    """One line for each name, and for each member of a class one below it, indented."""
    return [line for path in paths for line in (_read(path) if path.startswith(HEAVY) else _found_lines(path))]


def package() -> list[str]:
    """The paths of the public names."""
    return [f"softprune.{name}" for name in softprune.__all__]


def paths_in(lines: Iterable[str]) -> list[str]:
    """The paths that lines are about."""
    return [re.split(r"[(:]", line)[0] for line in lines if line.startswith("softprune.")]


def _found_lines(path: str) -> list[str]:
    return _described(path, _found(path)) if _exists(path) else [f"{path}: missing"]


def _exists(path: str) -> bool:
    try:
        _found(path)
    except (ImportError, AttributeError):
        return False
    return True


def _found(path: str) -> Any:
    """What `from ... import ...` gives for a path: an attribute of a module first, else a module below it."""
    parent, _, name = path.rpartition(".")
    if not parent:
        return importlib.import_module(name)
    owner = _found(parent)
    return getattr(owner, name) if hasattr(owner, name) else importlib.import_module(path)


def _described(path: str, value: Any) -> list[str]:
    if inspect.ismodule(value):
        return [f"{path}: module"]
    if inspect.isclass(value):
        return [f"{path}{_signature(value)}", *(f"    .{line}" for line in _members(value))]
    if callable(value):
        return [f"{path}{_signature(value)}"]
    return [f"{path}: {type(value).__name__}"]


def _members(cls: type) -> list[str]:
    """Public members that are ours and not in the constructor; what all methods, and goals, have their bases tell."""
    lines = []
    known = {name for base in (Method, Goal) if issubclass(cls, base) and cls is not base for name in dir(base)}
    known |= set(inspect.signature(cls).parameters) if "__init__" in vars(cls) else set()
    for name in sorted(dir(cls)):
        if (name.startswith("_") and name not in OPERATORS) or name in known:
            continue
        owner = next((c for c in cls.__mro__ if name in vars(c)), None)
        if owner is None or not owner.__module__.startswith("softprune"):
            continue
        member = inspect.getattr_static(cls, name)
        if isinstance(member, property) or type(member).__name__ == "cached_property":
            lines.append(f"{name}: property")
        elif isinstance(member, staticmethod | classmethod):
            lines.append(f"{name}{_signature(getattr(cls, name))}")
        elif inspect.isfunction(member):
            lines.append(f"{name}{_signature(member)}")
        else:
            lines.append(f"{name}: {type(member).__name__}")
    return lines


def _signature(called: Callable[..., Any]) -> str:
    try:
        signature = inspect.signature(called)
    except ValueError:
        return "(...)"
    given, star = [], False
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not star:
            given.append("*")
        star = star or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        text = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "") + p.name
        if p.annotation is not p.empty:
            text += f": {_plain(p.annotation)}"
        if p.default is not p.empty:
            text += f" = {_default(p.default)}"
        given.append(text)
    returned = "" if signature.return_annotation is signature.empty else f" -> {_plain(signature.return_annotation)}"
    return f"({', '.join(given)}){returned}"


def _plain(annotation: Any) -> str:
    """Without quotes and without the modules of the types, which may move."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"(?<![\w.])(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])", "", re.sub("[\"']", "", text))


def _default(value: Any) -> str:
    return value.__name__ if inspect.isfunction(value) or inspect.isclass(value) else repr(value)


def _read(path: str) -> list[str]:
    """The same from the source, for what is slow to import."""
    module, _, name = path.rpartition(".")
    if path in HEAVY:
        return [f"{path}: module"] if importlib.util.find_spec(path) else [f"{path}: missing"]
    node = _definition(module, name)
    if isinstance(node, ast.ClassDef):
        methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
        public = [n for n in methods if not n.name.startswith("_") or n.name == "__init__"]
        return [f"{path}: class", *(f"    .{n.name}{_written(n)}" for n in sorted(public, key=lambda n: n.name))]
    return [f"{path}{_written(node)}"] if isinstance(node, ast.FunctionDef) else [f"{path}: missing"]


def _definition(module: str, name: str) -> ast.AST | None:
    """Where a name is defined, there or in the module of ours that it is imported from."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("softprune"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _definition(node.module or "", alias.name)
    return None


def _written(node: ast.FunctionDef) -> str:
    returned = f" -> {_plain(ast.unparse(node.returns))}" if node.returns else ""
    return f"({_plain(ast.unparse(node.args).replace(chr(39) * 2, '<empty>'))}){returned}"
