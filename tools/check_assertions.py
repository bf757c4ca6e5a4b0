"""Fail if a test function never asserts anything: a test that cannot fail proves nothing.

Usage: python tools/check_assertions.py FOLDER...
"""

import ast
import sys
from pathlib import Path

# Calls that fail a test on their own: pytest's, torch's comparison and gradient check, and ours.
ASSERTING_CALLS = {"raises", "warns", "assert_close", "assert_allclose", "gradcheck", "gradgradcheck"}


def asserts(node: ast.AST, helpers: set[str]) -> bool:
    for child in ast.walk(node):
        if isinstance(child, ast.Assert):
            return True
        if isinstance(child, ast.Call):
            called = child.func.attr if isinstance(child.func, ast.Attribute) else getattr(child.func, "id", "")
            if called in ASSERTING_CALLS or called in helpers:
                return True
    return False


def asserting_helpers(path: Path) -> set[str]:
    """Functions of a file that assert, themselves or through one another; imported ones from beside or above it too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            origin = next((p for p in (f / f"{node.module}.py" for f in path.parents) if p.is_file()), None)
            asserting = set() if origin is None else asserting_helpers(origin)
            found |= {alias.asname or alias.name for alias in node.names if alias.name in asserting}
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and not n.name.startswith("test_")]
    while new := {f.name for f in functions if f.name not in found and asserts(f, found)}:
        found |= new
    return found


def silent_tests(path: Path) -> list[str]:
    """The tests of a file that assert nothing, themselves or through a helper."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    helpers = asserting_helpers(path)
    return [
        f"{path}:{f.lineno}: {f.name} asserts nothing"
        for f in ast.walk(tree)
        if isinstance(f, ast.FunctionDef) and f.name.startswith("test_") and not asserts(f, helpers)
    ]


def main(folders: list[str]) -> int:
    files = sorted(p for folder in folders for p in Path(folder).rglob("test_*.py"))
    if not files:
        print(f"no test files under {folders}", file=sys.stderr)
        return 1
    silent = [line for path in files for line in silent_tests(path)]
    for line in silent:
        print(line, file=sys.stderr)
    print(f"{len(files)} test files checked, {len(silent)} tests without an assertion")
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
