"""The command that lists the methods."""

from __future__ import annotations

from rich.markup import escape
from rich.padding import Padding

from softprune.cli.terminal import console, table

# Columns from which on five of them side by side can be read.
_WIDE = 120


def methods() -> None:
    """List the methods: what each does with a budget, what it takes, where it was published, and one line about it."""
    from softprune.methods.registry import method_class, method_names

    rows = table("method", "role", "takes", "paper", "what it does")
    for name in method_names():
        cls = method_class(name)
        takes = ", ".join("nothing" if total == "none" else total for total in cls.accepts)
        says = escape((cls.__doc__ or "").partition("\n")[0].replace("``", ""))
        rows.add_row(name, cls.role, takes, cls.paper, says)
        if console.width < _WIDE:
            origin = f"; {cls.paper}" if cls.paper else ""
            console.print(f"[bold]{name}[/]  {cls.role}, takes {takes}{origin}", highlight=False)
            console.print(Padding(says, (0, 0, 0, 4)))
    if console.width >= _WIDE:
        console.print(rows)
    console.print(
        "role: keeps the budget it is given, moves it between tensors, or learns it. "
        "Use one as in: softprune train fashion-mnist/dense method=rigl goal.sparsity=0.9 goal.budget=erk",
        highlight=False,
    )
