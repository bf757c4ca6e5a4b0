"""When a mask is renewed: every so many steps, up to some point of the training."""

from __future__ import annotations

from softprune.methods.base import Context


def require_interval(every: int, end: float) -> None:
    """Refuse what is no interval, when a method is made."""
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ValueError(f"every is a number of steps, at least 1; got {every!r}")
    require_fraction("end", end)


def require_fraction(name: str, value: float) -> None:
    """Refuse what is not in (0, 1]."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.0 < value <= 1.0:
        raise ValueError(f"{name} is a fraction above 0 and at most 1, got {value!r}")


def due(ctx: Context, every: int, end: float) -> bool:
    """Whether the mask is renewed after this many steps; never before the first."""
    return 0 < ctx.step <= end * ctx.total_steps and ctx.step % every == 0


def refuse_too_long(ctx: Context, every: int, end: float) -> None:
    """Raise if the mask would never be renewed in this training."""
    last = int(end * ctx.total_steps)
    if every > last:
        raise ValueError(
            f"masks are renewed every {every} steps until step {last} of {ctx.total_steps}, so they never would be: "
            f"set every to {max(1, last // 10)} or so"
        )


def refuse_longer_than(ctx: Context, every: int) -> None:
    """Raise if the interval does not fit into the training, which would then be pruned in one go at its last step."""
    if every > ctx.total_steps:
        raise ValueError(f"masks are renewed every {every} steps, but the training has {ctx.total_steps}: lower every")
