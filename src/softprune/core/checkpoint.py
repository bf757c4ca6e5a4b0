"""State on disk: one safetensors file that holds the tensors and, in its header, everything else."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch.distributed as dist
from torch import Tensor

from softprune.core.bake import Freezable, freeze_
from softprune.core.sharding import placed_like, sharded, whole
from softprune.core.state_file import read_state, write_state
from softprune.methods.registry import from_config, to_config
from softprune.methods.transforms import SoftThreshold

if TYPE_CHECKING:
    from softprune.core.sparsifier import Sparsifier

FORMAT = "softprune-state"
VERSION = 1
STATE_FILE = "state.safetensors"
BUDGET_FILE = "budget.json"


def snapshot(sparsifier: Sparsifier) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "method": to_config(sparsifier.method),
        "targets": _describe(sparsifier),
        "scales": {t.name: t.transform.g.scale for t in sparsifier.targets if isinstance(t.transform, SoftThreshold)},
        "step": sparsifier.step,
        "total_steps": sparsifier.total_steps,
        "frozen": sparsifier.frozen,
        "goals": [str(part) for part in sparsifier.goals],
        "seed": sparsifier.seed,
        "memories": [deepcopy(context.memory) for context in sparsifier.contexts.values()],
    }


def _describe(sparsifier: Sparsifier) -> dict[str, Any]:
    """What makes two models alike: the shape of each tensor and, where a rule has refined it, its method."""
    described: dict[str, Any] = {}
    for planned in sparsifier.plan.managed:
        assert planned.method is not None
        described[planned.target.name] = {"shape": list(planned.target.raw.shape)}
        if planned.method != sparsifier.method:
            described[planned.target.name]["method"] = to_config(planned.method)
    return described


def restore(sparsifier: Sparsifier, state: Mapping[str, Any]) -> None:
    """Check all of it against the sparsifier, then take it over."""
    _check(sparsifier, state)
    _take_over(sparsifier, state)


def _check(sparsifier: Sparsifier, state: Mapping[str, Any]) -> None:
    if state.get("format") != FORMAT:
        raise ValueError(f"this is not a {FORMAT} state: its format is {state.get('format')!r}")
    if state.get("version") != VERSION:
        raise ValueError(f"state version {state.get('version')!r} is unknown; this softprune reads version {VERSION}")
    mine = snapshot(sparsifier)
    # States from before there were goals, seeds and memories have none.
    state = {"goals": [], "seed": mine["seed"], "memories": mine["memories"], **state}
    missing = sorted(set(mine) - set(state))
    if missing:
        raise ValueError(f"the state is damaged: it has no {', '.join(missing)}")
    if not isinstance(state["method"], Mapping):
        raise ValueError(f"the state is damaged: its method is {state['method']!r}")
    method = from_config(state["method"])
    if method != sparsifier.method:
        raise ValueError(
            f"the state was saved with {method}, this model was sparsified with {sparsifier.method}: use the same"
        )
    if state["goals"] != mine["goals"]:
        raise ValueError(
            f"the state was saved with the goals {state['goals'] or 'none'}, this model has {mine['goals'] or 'none'}"
        )
    here, there = mine["targets"], state["targets"]
    if not isinstance(there, Mapping) or not isinstance(state["scales"], Mapping):
        raise ValueError("the state is damaged: its targets and scales must be mappings")
    if not isinstance(state["step"], int) or state["step"] < 0:
        raise ValueError(f"the state is damaged: its step is {state['step']!r}")
    if state["total_steps"] is not None and not (isinstance(state["total_steps"], int) and state["total_steps"] > 0):
        raise ValueError(f"the state is damaged: its total_steps is {state['total_steps']!r}")
    if state["frozen"] not in (None, *get_args(Freezable)):
        raise ValueError(f"the state is damaged: it is frozen in an unknown way, {state['frozen']!r}")
    wrong = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))
    if wrong:
        raise ValueError(f"the state is of other tensors; these differ in presence, shape or rules: {', '.join(wrong)}")
    memories = state["memories"]
    fits = isinstance(memories, list) and all(isinstance(memory, Mapping) for memory in memories)
    if not (fits and len(memories) == len(mine["memories"])):
        raise ValueError("the state is damaged: its memories are not those of this method")
    # Other transforms than a soft threshold have no scale.
    unscaled = sorted(set(mine["scales"]) - set(state["scales"])) if state["frozen"] in (None, "thresholds") else []
    if unscaled:
        raise ValueError(f"the state is damaged: its scales have no {', '.join(unscaled)}")
    if sparsifier.frozen is not None and sparsifier.frozen != state["frozen"]:
        raise ValueError(
            f"this sparsifier is frozen ({sparsifier.frozen}), the state is not so: sparsify a fresh model"
        )


def _take_over(sparsifier: Sparsifier, state: Mapping[str, Any]) -> None:
    if sparsifier.frozen is None and state["frozen"] is not None:
        freeze_(sparsifier.targets, state["frozen"])
        sparsifier.frozen = state["frozen"]
    for target in sparsifier.targets:
        transform = target.transform
        if isinstance(transform, SoftThreshold):
            # k="auto" was taken from the weights that the other run started with.
            transform.g = replace(transform.g, k=state["scales"][target.name])
    sparsifier.step = state["step"]
    sparsifier.seed = state.get("seed", sparsifier.seed)
    memories = state.get("memories", [{} for _ in sparsifier.contexts])
    for context, memory in zip(sparsifier.contexts.values(), memories, strict=True):
        context.seed, context.memory = sparsifier.seed, deepcopy(memory)
    if sparsifier.total_steps is None:
        # What was trained to the end has met its goal, also where no optimizer will be attached any more.
        sparsifier.total_steps = state["total_steps"]


def save_folder(sparsifier: Sparsifier, folder: Path) -> None:
    state = sparsifier.model.state_dict()
    strange = [name for name, t in state.items() if not isinstance(t, Tensor)]
    if strange:
        raise ValueError(f"{strange[0]} is no tensor: save this model with torch.save, and state_dict() beside it")
    tensors = {name: whole(t.detach()) for name, t in state.items()}
    budget = sparsifier.measure()
    together = any(map(sharded, sparsifier.targets))
    try:
        # All processes of a sharded model take part in gathering, one of them writes.
        if not together or dist.get_rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            write_state(folder / STATE_FILE, tensors, snapshot(sparsifier))
            budget.save(folder / BUDGET_FILE)
    finally:
        if together:
            dist.barrier()


def load_folder(sparsifier: Sparsifier, folder: Path) -> None:
    path = folder / STATE_FILE
    if not path.is_file():
        raise ValueError(f"{folder} has no {STATE_FILE}: pass a folder that Sparsifier.save wrote")
    tensors, state = read_state(path)
    _check(sparsifier, state)
    _check_tensors(_shapes_when(sparsifier, state["frozen"]), tensors)
    _take_over(sparsifier, state)
    mine = sparsifier.model.state_dict()
    sparsifier.model.load_state_dict({name: placed_like(t, mine[name]) for name, t in tensors.items()})


def _shapes_when(sparsifier: Sparsifier, frozen: Freezable | None) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that the model's state will have once it is frozen like that."""
    shapes = {name: tuple(t.shape) for name, t in sparsifier.model.state_dict().items()}
    if frozen in (sparsifier.frozen, "thresholds"):
        return shapes
    managed = {site for target in sparsifier.targets for site in target.sites}
    for path, module in sparsifier.model.named_modules(remove_duplicate=False):
        for tensor in [tensor for owner, tensor in managed if owner is module]:
            home = f"{path}.parametrizations.{tensor}.".lstrip(".")
            s = shapes.get(f"{home}0.s")
            if frozen == "budget" and (s is None or f"{home}0.mask" in shapes):
                continue  # no threshold to hold
            leak = {name: shape for name, shape in shapes.items() if name == f"{home}0.leak"}
            shapes = {name: shape for name, shape in shapes.items() if not name.startswith(f"{home}0.")}
            if frozen == "support":
                shapes[f"{home}0.mask"] = shapes[f"{home}original"]
            elif s is not None:
                shapes |= {f"{home}0.alpha": s, f"{home}0.kept": (), **leak}
    return shapes


def _check_tensors(expected: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor]) -> None:
    found = {name: tuple(t.shape) for name, t in tensors.items()}
    wrong = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
    if wrong:
        one = wrong[0]
        raise ValueError(
            f"the state does not fit this model: {len(wrong)} tensors differ, the first is {one} "
            f"({expected.get(one, 'absent')} here, {found.get(one, 'absent')} in the file)"
        )
