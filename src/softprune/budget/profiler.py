"""Profile a model: run it once and count what each tensor costs."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from softprune.budget.costs import Profile, TensorCost
from softprune.budget.counter import MacCounter
from softprune.budget.prunable import (
    PrunableTensor,
    first_names,
    named_tensors,
    parametrization,
    prunable_tensors,
)
from softprune.budget.sandbox import sandbox


def profile(model: nn.Module, example: Any, *, tensors: Sequence[str] | None = None) -> Profile:
    """Count the weights and multiply-adds of every prunable tensor in one forward pass.

    One multiply-add is one MAC, the paper's FLOP; biases, normalisation and activations cost
    nothing; average pools are counted apart. The model is left exactly as it was.

    Args:
        model: any module, on any device. On the meta device nothing is computed.
        example: one tensor, a tuple of positional or a mapping of keyword arguments. Its batch is
            counted as given: pass a batch of one for the cost of one sample.
        tensors: names of the tensors to list instead of :func:`prunable_tensors`' choice.

    Returns:
        One row for each tensor (tied tensors: the first name) in the order of use of their modules;
        those the pass does not use come last with 0 MACs.

    Example:
        >>> import torch
        >>> costs = profile(torch.nn.Linear(4, 3), torch.zeros(1, 4))
        >>> costs.params, costs.macs, costs.other_params
        (12, 12, 3)
    """
    entries = prunable_tensors(model) if tensors is None else named_tensors(model, tensors)
    if not entries:
        raise ValueError(f"{type(model).__name__} has no prunable weights; name some with tensors=[...]")
    rows = {entry.parameter: entry.name for entry in first_names(entries)}
    counter = MacCounter()
    for parameter, name in rows.items():
        counter.watch(parameter, name)
    with ExitStack() as hooks, sandbox(model):
        _watch_parametrizations(model, entries, rows=rows, counter=counter, hooks=hooks)
        with counter:
            run(model, example)
    return Profile(
        tuple(
            TensorCost(entry.name, tuple(entry.parameter.shape), counter.macs.get(entry.name, 0))
            for entry in _in_order_of_use(first_names(entries), list(counter.macs))
        ),
        other_macs=counter.other_macs,
        pool_macs=counter.pool_macs,
        other_params=_other_params(model, set(rows)),
    )


def _in_order_of_use(entries: Sequence[PrunableTensor], touched: Sequence[str]) -> list[PrunableTensor]:
    """Modules as they were first used, unused ones last; within a module as listed.

    Which of an LSTM cell's two products comes first differs between devices, so it must not decide.
    """
    first: dict[nn.Module, int] = {}
    for entry in entries:
        at = touched.index(entry.name) if entry.name in touched else len(touched)
        first[entry.module] = min(at, first.get(entry.module, at))
    return sorted(entries, key=lambda entry: first[entry.module])


def run(model: nn.Module, example: Any) -> None:
    """One forward pass with an example as :func:`profile` takes it."""
    if isinstance(example, Mapping):
        model(**example)
    elif isinstance(example, tuple):
        model(*example)
    else:
        model(example)


def _watch_parametrizations(
    model: nn.Module,
    entries: Sequence[PrunableTensor],
    *,
    rows: Mapping[nn.Parameter, str],
    counter: MacCounter,
    hooks: ExitStack,
) -> None:
    """What a parametrization returns is known by its tensor's name; its own work costs nothing."""
    names: dict[nn.Module, str] = {
        transforms: rows[entry.parameter]
        for entry in entries
        if (transforms := parametrization(entry.module, entry.tensor)) is not None
    }

    def before(module: nn.Module, args: Any) -> None:
        counter.paused += 1

    def after(module: nn.Module, args: Any, out: Any) -> None:
        counter.paused -= 1
        if module in names and isinstance(out, Tensor):
            counter.watch(out, names[module])

    for module in model.modules():
        if isinstance(module, parametrize.ParametrizationList):
            hooks.callback(module.register_forward_pre_hook(before).remove)
            hooks.callback(module.register_forward_hook(after).remove)


def _other_params(model: nn.Module, rows: set[nn.Parameter]) -> int:
    """Parameters in no row; a parametrization's own (thresholds) are not part of the network."""
    lists = (m for m in model.modules() if isinstance(m, parametrize.ParametrizationList))
    own = {p for entry in lists for transform in entry for p in transform.parameters()}
    return sum(p.numel() for p in model.parameters() if p not in rows and p not in own)
