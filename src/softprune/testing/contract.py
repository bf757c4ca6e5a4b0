"""The contract: what `sparsify` and its users rely on, of every method."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F
from torch.optim import SGD

from softprune.budget.budget import Budget
from softprune.core.sparsify import sparsify
from softprune.goals.base import asked
from softprune.goals.goal import Params
from softprune.methods.base import Method, from_config, to_config
from softprune.testing.trial import (
    EVERY,
    GOAL,
    NETWORKS,
    OPTIMIZERS,
    STEPS,
    Case,
    Setting,
    Timetable,
    densities,
    evaluated,
    evaluating,
    has_interval,
    hastened,
    living,
    quiet,
    require,
    same,
    unequal,
)

# Recovery of a known sparse solution of a convex problem:
# 128 weights, 8 of them in the solution; a mask drawn at random that keeps 16 finds one of the 8 in the mean.
INPUTS, OUTPUTS, SUPPORT, KEPT = 32, 4, 8, 16
SAMPLES, RECOVERY_STEPS = 256, 240
# From several starts, since one alone may be lucky; on average one of the 8 may be missed.
STARTS, FOUND = 3, 7


def forward_is_as_documented(case: Case) -> None:
    """Raw weights are untouched; a mask leaves or takes a weight; nothing changes before the schedule asks for it."""
    trial = case.trial()
    trial.model.eval()
    for target in trial.sparsifier.targets:
        raw, effective = target.raw.detach(), target.effective.detach()
        require(same(raw, trial.dense[target.name]), f"the raw {target.name} as it was", "other values")
        turned = int((effective * raw < 0).sum() + ((effective != 0) & (raw == 0)).sum())
        require(turned == 0, f"every weight of {target.name} to be 0 or of its old sign", f"{turned} that are not")
        if case.method.moves_masks:
            masked = torch.where(trial.living()[target.name], raw, 0.0)
            require(same(effective, masked), f"{target.name} to be raw where its mask is, else 0", "other values")
    solved = case.setting.total != "none" and not case.method.moves_masks
    if solved and asked(case.method.goal_settings.schedule, 0.0) == 0.0:
        require(
            same(trial.output(), trial.dense_output),
            "the output of the dense network, since the schedule asks for nothing yet",
            "another output",
        )
    trial.sparsifier.remove()
    require(same(trial.output(), trial.dense_output), "the dense network back by remove()", "another output")


def total_is_reached(case: Case) -> None:
    """Exactly where thresholds are solved for or learnt, else within one weight per tensor."""
    if case.setting.total == "none":
        return
    last, sizes = case.frames[-1], {name: mask.numel() for name, mask in case.frames[-1].living.items()}
    nonzero = {name: int(torch.count_nonzero(w)) for name, w in last.effective.items()}
    kept = last.counts if case.method.moves_masks else nonzero
    slack = 0 if case.method.role == "learned" else 1
    given = {name: round(density * sizes[name]) for name, density in densities(case.setting.network.made()).items()}
    shared = case.setting.total == "goal"
    if shared or case.method.role == "moved":
        wanted, seen = GOAL.kept(sum(sizes.values())) if shared else sum(given.values()), sum(kept.values())
        require(abs(seen - wanted) <= slack * len(sizes), f"{wanted} weights at the end", f"{seen}: {kept}")
        return
    for name, wanted in given.items():
        require(abs(kept[name] - wanted) <= slack, f"{wanted} weights of {name} at the end", kept[name])


def total_is_kept(case: Case) -> None:
    """What moves masks has the same number after every step; what is solved for, what the schedule allows."""
    if case.method.moves_masks:
        # From the first step on, which may be the one that decides. One number where weights move between tensors.
        moved = case.method.role == "moved"
        held: list[object] = [sum(frame.counts.values()) if moved else frame.counts for frame in case.frames[1:]]
        for step, seen in enumerate(held, 1):
            require(seen == held[0], f"{held[0]} weights after step {step} as after the first", seen)
        return
    for constraint in case.finished.sparsifier.goals:
        if any(getattr(m.target.transform, "rise", None) is not None for m in constraint.tensors):
            continue  # which lets more live until the last step
        for frame in (f for f in case.frames[1:] if constraint.due(f.step, STEPS)):
            allowed = constraint.allowed(frame.step / STEPS)
            count = sum(frame.counts[m.target.name] for m in constraint.tensors)
            require(count == allowed, f"{allowed} weights after step {frame.step}, as {constraint} asks", count)


def pruned_weights_stay_zero(case: Case) -> None:
    """A weight outside the mask is 0 after every step."""
    for frame in case.frames:
        for name, alive in frame.living.items():
            count = int((frame.effective[name][~alive] != 0).sum())
            require(count == 0, f"0 at every pruned weight of {name} after step {frame.step}", f"{count} that are not")


def masks_change_on_time(case: Case) -> None:
    """Between the steps at which masks are renewed they are fixed.

    These are the steps of the goal's solutions; for methods that move masks every `every`-th (and the one after it,
    where the gradient of the next batch decides), and for those without `every` the first.
    """
    masked = {t.name for t in case.finished.sparsifier.targets if "mask" in t.transform._buffers}
    for before, after in pairwise(case.frames):
        if not _may_change(case, after.step):
            changed = [name for name in sorted(masked) if not before.living[name].equal(after.living[name])]
            require(not changed, f"the masks of step {before.step} still in step {after.step}", f"others of {changed}")


def _may_change(case: Case, step: int) -> bool:
    if case.timetable is not None:
        return case.timetable(step, STEPS)
    if not case.method.moves_masks:
        return any(constraint.due(step, STEPS) for constraint in case.finished.sparsifier.goals)
    return step % EVERY in (0, 1) if has_interval(case.method) else step == 1


def training_resumes(case: Case) -> None:
    """Half a training, saved, loaded in a fresh model, and the other half: the same bits as in one go."""
    first, second = case.trial(), case.trial()
    first.train(STEPS // 2)
    with TemporaryDirectory() as folder:
        first.sparsifier.save(Path(folder))
        second.sparsifier.load(Path(folder))
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    second.train(STEPS - STEPS // 2)
    differ = unequal(second.state(), case.finished.state())
    require(not differ, "the bits of a training that was not interrupted", f"others in {differ}")


def bake_is_exact(case: Case) -> None:
    """The plain model computes what the managed one did, with the classes and the keys that it had.

    This ends the trial that other checks look at, so it comes last.
    """
    trial = case.finished
    managed = trial.output()
    baked = trial.sparsifier.bake()
    require(baked is trial.model, "the same model back", "another object")
    require(same(trial.output(), managed), "the output of the managed network, bit for bit", "another output")
    require(list(baked.state_dict()) == trial.keys, f"the keys {trial.keys}", list(baked.state_dict()))
    classes = [type(module) for module in baked.modules()]
    require(classes == trial.classes, f"the classes {trial.classes}", classes)


def runs_repeat(case: Case) -> None:
    """Two equal trainings end with equal bits; after detach() nothing of the method moves any more."""
    trial, half = case.trial(), STEPS // 2
    trial.train(half)
    differ = unequal(trial.effective(), case.frames[half].effective)
    require(not differ, f"the same bits after {half} steps of two equal trainings", f"others in {differ}")
    trial.sparsifier.detach()
    before = {t.name: {k: b.clone() for k, b in t.transform.named_buffers()} for t in trial.sparsifier.targets}
    memories = copy.deepcopy([c.memory for c in trial.sparsifier.contexts.values()])
    for number in range(half, half + 6):
        trial.train_on(number)
    for target in trial.sparsifier.targets:
        moved = unequal(before[target.name], dict(target.transform.named_buffers()))
        require(not moved, f"the transform of {target.name} to rest after detach()", f"changes in {moved}")
    require(trial.sparsifier.step == half, f"step {half} after detach()", trial.sparsifier.step)
    found = [c.memory for c in trial.sparsifier.contexts.values()]
    require(found == memories, "no change in the memory after detach()", "one")


def explicit_calls_do_as_hooks(case: Case) -> None:
    """A loop that says itself when a step begins and ends gets the bits of one that is followed by hooks."""
    trial, half = case.trial(follow=False), STEPS // 2
    trial.train(half)
    differ = unequal(trial.effective(), case.frames[half].effective)
    require(not differ, f"the bits of {half} steps that hooks followed", f"others in {differ}")


def copies_are_independent(case: Case) -> None:
    """A deep copy computes the same, shares no memory, and trains without the original."""
    original, network = case.finished.model, case.setting.network
    other = copy.deepcopy(original)
    require(same(evaluated(other, network), case.finished.output()), "a copy that computes the same", "another output")
    shared = {t.data_ptr() for t in original.state_dict().values()} & {
        t.data_ptr() for t in other.state_dict().values() if t.numel()
    }
    require(not shared, "a copy with memory of its own", f"{len(shared)} shared tensors")
    before = case.finished.state()
    optimizer = SGD(other.parameters(), lr=0.1)
    for number in range(3):
        x, y = network.batch(number)
        optimizer.zero_grad()
        F.cross_entropy(other(x), y).backward()
        optimizer.step()
    differ = unequal(before, case.finished.state())
    require(not differ, "the original to rest while its copy trains", f"changes in {differ}")


def config_round_trips(method: Method) -> None:
    """The method is plain data: through JSON and back it is equal, and so is its hash."""
    config = json.loads(json.dumps(to_config(method)))
    again = from_config(config)
    require(again == method and hash(again) == hash(method), f"{method} again from {config}", again)


@dataclass(frozen=True)
class Regression:
    """y = W x without noise: least squares has W as its only minimum, with entries of size 1 to 2 at random places."""

    x: Tensor
    y: Tensor
    solution: Tensor


def problem(seed: int = 0) -> Regression:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, INPUTS, generator=generator)
    solution = torch.zeros(OUTPUTS * INPUTS)
    places = torch.randperm(OUTPUTS * INPUTS, generator=generator)[:SUPPORT]
    signs = torch.randint(0, 2, (SUPPORT,), generator=generator) * 2 - 1
    solution[places] = signs * (1.0 + torch.rand(SUPPORT, generator=generator))
    solution = solution.view(OUTPUTS, INPUTS)
    return Regression(x, x @ solution.T, solution)


def found(method: Method, seed: int = 0) -> int:
    """How many weights of the solution a method keeps."""
    given = problem(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS, bias=False))
    total: dict[str, Any] = {"budget": Budget({"0.weight": KEPT / (INPUTS * OUTPUTS)})}
    if "goal" in method.accepts or "budget" not in method.accepts:
        total = {"goal": Params(KEPT)} if "goal" in method.accepts else {}
    sparsifier = sparsify(model, method, seed=seed, **total)
    optimizer = SGD(sparsifier.param_groups(weight_decay=1e-4), lr=0.05, momentum=0.9)
    with quiet():
        sparsifier.attach(optimizer, total_steps=RECOVERY_STEPS)
        for _ in range(RECOVERY_STEPS):
            optimizer.zero_grad()
            (model(given.x) - given.y).square().mean().backward()
            optimizer.step()
    with evaluating(model):
        return int((living(sparsifier.targets[0]) & (given.solution != 0)).sum())


def support_is_recovered(method: Method) -> None:
    """Of 128 weights 8 make up the solution; with 16 to keep, 7 of them live, on average over three starts."""
    if not method.selects:
        return
    counts = [found(method, seed) for seed in range(STARTS)]
    wanted = f"at least {FOUND} of the {SUPPORT} weights of the solution to be kept, on average"
    require(sum(counts) >= FOUND * STARTS, wanted, counts)


def nothing_compiles_again(case: Case) -> None:
    """Over two renewals of the masks there is one graph, without a break."""
    torch._dynamo.reset()
    counter: Any = CompileCounter()
    trial = case.trial()
    trial.run = torch.compile(trial.model, backend=counter, fullgraph=True)
    try:
        trial.train(2 * EVERY + 2)
    finally:
        torch._dynamo.reset()
    require(counter.frame_count == 1, "one graph", counter.frame_count)


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
