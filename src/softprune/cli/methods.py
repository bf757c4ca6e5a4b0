"""The command that lists the methods."""

from __future__ import annotations

from rich.markup import escape

from softprune.cli.terminal import console, table


def methods() -> None:
    """List the methods: what each does with a budget, what it takes, where it was published, and one line about it."""
    from softprune.methods.registry import method_class, method_names

    rows = table("method", "role", "takes", "paper", "what it does")
    for name in method_names():
        cls = method_class(name)
        takes = ", ".join("nothing" if total == "none" else total for total in cls.accepts)
        rows.add_row(name, cls.role, takes, cls.paper, escape((cls.__doc__ or "").partition("\n")[0].replace("``", "")))
    console.print(rows)
    console.print(
        "role: keeps the budget it is given, moves it between tensors, or learns it. "
        "Use one as in: softprune train fashion-mnist/dense method=rigl goal.sparsity=0.9 goal.budget=erk",
        highlight=False,
    )
