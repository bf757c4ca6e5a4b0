"""The contract: what `sparsify` and its users rely on, of every method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from softprune.methods.base import Method
from softprune.testing.checks import (
    bake_is_exact,
    config_round_trips,
    copies_are_independent,
    explicit_calls_do_as_hooks,
    forward_is_as_documented,
    masks_change_on_time,
    nothing_compiles_again,
    pruned_weights_stay_zero,
    runs_repeat,
    support_is_recovered,
    total_is_kept,
    total_is_reached,
    training_resumes,
)
from softprune.testing.trial import NETWORKS, OPTIMIZERS, Case, Setting, Timetable, hastened

_ON_METHODS: tuple[Callable[[Method], None], ...] = (config_round_trips, support_is_recovered)
# In every setting.
_ON_CASES: tuple[Callable[[Case], None], ...] = (
    forward_is_as_documented,
    total_is_reached,
    total_is_kept,
    pruned_weights_stay_zero,
    masks_change_on_time,
    training_resumes,
    runs_repeat,
    explicit_calls_do_as_hooks,
    copies_are_independent,
    bake_is_exact,
)
# Slow, and the same for every optimizer and total: on each network once.
_ON_NETWORKS: tuple[Callable[[Case], None], ...] = (nothing_compiles_again,)

On = TypeVar("On", Method, Case)

FIRST = next(iter(OPTIMIZERS))

CHECKS = tuple(check.__name__ for check in (*_ON_METHODS, *_ON_CASES, *_ON_NETWORKS))


class ContractError(AssertionError):
    """A method breaks the contract; the message says which check, where, what was expected and what was seen."""


def check_method(method: Method, *, only: Iterable[str] = CHECKS, timetable: Timetable | None = None) -> None:
    """Train small networks with a method and check what every method must hold.

    Three networks (dense, convolutional with batch norm, a recurrent cell), every total that the method accepts with
    SGD with momentum, and one of them with AdamW. Takes some seconds. A field `every` is set to a few steps, so that
    masks are renewed in short trainings.

    Args:
        method: with the settings that it shall be tried with.
        only: the names of the checks to make, of `CHECKS`; all by default.
        timetable: whether masks may change, given the step (from 1) and the number of steps; for methods that
            move masks at other times than every `every` steps.

    Raises:
        ContractError: if a check fails; the first one that does.
        ValueError: for an unknown check.

    >>> check_method(Static(), only=["total_is_reached"])  # doctest: +SKIP
    """
    chosen = set(only)
    if unknown := sorted(chosen - set(CHECKS)):
        raise ValueError(f"unknown check {', '.join(unknown)}; known are {', '.join(CHECKS)}")
    for on_method in _ON_METHODS:
        if on_method.__name__ in chosen:
            tried = method if on_method is config_round_trips else hastened(method)
            _make(on_method, tried, method, "data of its own")
    for setting in _settings(method):
        case = Case(hastened(method), setting, timetable)
        first = setting.optimizer == FIRST and setting.total == method.accepts[0]
        for check in (*_ON_NETWORKS, *_ON_CASES) if first else _ON_CASES:
            if check.__name__ in chosen:
                _make(check, case, method, str(setting))


def _settings(method: Method) -> Iterator[Setting]:
    """Every total with one optimizer; with the others the last, since what they change does not depend on it."""
    for network in NETWORKS:
        for optimizer in OPTIMIZERS:
            for total in method.accepts if optimizer == FIRST else method.accepts[-1:]:
                yield Setting(network, optimizer, total)


def _make(check: Callable[[On], None], on: On, method: Method, where: str) -> None:
    try:
        check(on)
    except Exception as error:
        what = str(error) if isinstance(error, AssertionError) else f"saw {type(error).__name__}: {error}"
        raise ContractError(f"{method} breaks the contract in {check.__name__} on {where}: {what}") from error
