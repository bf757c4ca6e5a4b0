"""A sparsifier as files: tensors as safetensors with facts as JSON in the header. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
import pickle
import zlib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from softprune.budget.budget import Budget
from softprune.budget.costs import Profile, TensorCost
from softprune.core.bake import Freezable, freeze_
from softprune.core.groups import placed_like, sharded, whole
from softprune.methods.base import from_config, to_config
from softprune.methods.transforms import SoftThreshold
from softprune.ops import soft_threshold
from softprune.records import BUDGET, parse_json, write_whole

if TYPE_CHECKING:
    from softprune.core.sparsifier import Sparsifier


FACTS, CHECKSUMS, DIGEST = "softprune", "crc32", "sha256"


def write_state(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and facts into one file, whole or not at all."""
    separate = _separate(tensors)
    # safetensors notices a file that is too short, but not one with a flipped bit. The digest covers all there is; the
    # checksums say which tensor is wrong, and are what releases before it look at.
    checksums = {name: _checksum(t) for name, t in separate.items()}
    header = {FACTS: json.dumps(dict(facts)), CHECKSUMS: json.dumps(checksums)}
    header[DIGEST] = _digest(separate, header)
    write_whole(path, lambda part: save_file(separate, part, metadata=header))


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write plain tensors into a safetensors file that any tool reads, whole or not at all."""
    separate = _separate(tensors)
    write_whole(path, lambda part: save_file(separate, part))


def read_state(path: Path, notes: list[str] | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a file that `write_state` wrote; ValueError if it is missing, damaged or of another kind.

    `notes` gets a sentence if the file is of a release that did not write a checksum of the facts.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    tensors, header = read_tensors(path)
    if FACTS not in header:
        raise ValueError(f"{path} holds tensors alone, no softprune state: load them with model.load_state_dict")
    # A damaged name must not pass for a file from before there was a digest.
    if strange := sorted(set(header) - {FACTS, CHECKSUMS, DIGEST}):
        raise ValueError(f"{path} is damaged, or of a newer release: its header has {strange[0]!r}")
    expected = parse_json(header.get(CHECKSUMS, "{}"), f"the checksums of {path}")
    if broken := sorted(name for name, t in tensors.items() if expected.get(name) != _checksum(t)):
        raise ValueError(f"{path} is damaged: the checksum of {broken[0]} is wrong ({len(broken)} tensors)")
    if DIGEST in header:
        if header[DIGEST] != _digest(tensors, header):
            raise ValueError(f"{path} is damaged: the checksum of its facts is wrong")
    elif notes is not None:
        notes.append(
            f"{path} is of an older release: its tensors have checksums, its facts, such as the step, have not"
        )
    return tensors, parse_json(header[FACTS], f"the header of {path}")


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, and its header; ValueError if it is damaged or of another kind."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from error


def _checksum(t: Tensor) -> int:
    return zlib.crc32(t.reshape(-1).view(torch.uint8).numpy()) if t.numel() else 0  # type: ignore[arg-type]


def _digest(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    """SHA-256 of everything: facts, checksums, and name, type, shape and content of each tensor."""
    whole = hashlib.sha256(json.dumps([header[FACTS], header.get(CHECKSUMS)]).encode())
    for name, t in sorted(tensors.items()):
        whole.update(json.dumps([name, str(t.dtype), list(t.shape)]).encode())
        if t.numel():
            whole.update(t.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    return whole.hexdigest()


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous CPU tensors that share no memory: safetensors refuses tied weights and shared thresholds otherwise."""
    owned: set[int] = set()
    separate = {}
    for name, t in tensors.items():
        t = t.detach().cpu().contiguous()
        if t.untyped_storage().data_ptr() in owned or t.numel() * t.element_size() != t.untyped_storage().nbytes():
            t = t.clone(memory_format=torch.contiguous_format)
        owned.add(t.untyped_storage().data_ptr())
        separate[name] = t
    return separate


# Reading the state dict of a file that torch.save wrote, without running anything in it. The learning rate of a run may
# be a numpy number and sit in the optimizer state beside the weights. These rebuild numbers and nothing else; every
# other foreign name in the file is refused, so no code of the file's author runs.
_rebuild_scalar = np.float64(0).__reduce__()[0]
_NUMPY_SCALARS: list[Any] = [
    (_rebuild_scalar, "numpy.core.multiarray.scalar"),  # its name in files of numpy before 2
    _rebuild_scalar,
    np.dtype,
    type(np.dtype(np.float64)),
]


def read_torch_file(path: Path) -> dict[str, Tensor]:
    """The state dict that is the file, or that is its ``state_dict``; keys as they are, tensors on the CPU.

    Raises:
        ValueError: if the file is missing or damaged, holds something else, or would run code to load.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        with torch.serialization.safe_globals(_NUMPY_SCALARS):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} is damaged, or holds objects that only running code could rebuild; refused: {error}"
        ) from error
    except Exception as error:  # torch.load meets a damaged file with whatever its parser stumbles over
        raise ValueError(f"{path} is not a torch checkpoint, or is damaged: {error}") from error
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items()):
        held = f", but the keys {', '.join(map(str, list(content)[:5]))}" if isinstance(content, dict) else ""
        raise ValueError(f"{path} holds no state dict of tensors{held}; save model.state_dict() itself")
    return {key: value.detach() for key, value in state.items()}


# The checkpoints that the paper's authors published.
THRESHOLD = ".sparseThreshold"
PREFIX = "module."  # DataParallel's


def read_str_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], Budget]:
    """The plain sparse weights and the budget of a checkpoint in the format of the authors' code.

    Every ``X.weight`` beside an ``X.sparseThreshold`` becomes sign(w) * relu(|w| - sigmoid(s)); the thresholds go,
    the prefix ``module.`` goes, everything else stays. The result loads into `softprune.nn`'s networks.

    Returns:
        State dict and budget (without MACs: profile the network and call `with_profile` to add them).

    Raises:
        ValueError: if the file is damaged, is no such checkpoint, or would run code to load.
    """
    state = {key.removeprefix(PREFIX): value for key, value in read_torch_file(Path(path)).items()}
    owners = [key.removesuffix(THRESHOLD) for key in state if key.endswith(THRESHOLD)]
    if not owners:
        raise ValueError(f"{path} has no key that ends in {THRESHOLD}: it is not a checkpoint of an STR model")
    if missing := [owner for owner in owners if f"{owner}.weight" not in state]:
        raise ValueError(f"{path} has a threshold but no weight for {', '.join(missing)}")
    plain: dict[str, Tensor] = {}
    densities: dict[str, float] = {}
    rows = []
    for key, value in state.items():
        owner, _, tensor = key.rpartition(".")
        if tensor == "sparseThreshold":
            continue
        if tensor == "weight" and owner in owners:
            value = soft_threshold(value, state[owner + THRESHOLD].reshape(-1)[:1])
            densities[key] = int(torch.count_nonzero(value)) / value.numel()
            rows.append(TensorCost(key, tuple(value.shape), 0))
        plain[key] = value
    return plain, Budget(
        densities, profile=Profile(tuple(rows), counted=False), source=f"imported from {Path(path).name}"
    )


def write_sparse_weights(weights: dict[str, Tensor], budget: Budget, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "model.safetensors", weights)
    budget.save(folder / BUDGET)


# State on disk: one safetensors file that holds the tensors and, in its header, everything else.

FORMAT = "softprune-state"
VERSION = 1
STATE_FILE = "state.safetensors"


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
        "goals": [str(constraint) for constraint in sparsifier.goals],
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
    if missing := sorted(set(mine) - set(state)):
        raise ValueError(f"the state is damaged: it has no {', '.join(missing)}")
    if not isinstance(state["method"], Mapping):
        raise ValueError(f"the state is damaged: its method is {state['method']!r}")
    if (method := from_config(state["method"])) != sparsifier.method:
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
    if wrong := sorted(name for name in {*here, *there} if here.get(name) != there.get(name)):
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
    if strange := [name for name, t in state.items() if not isinstance(t, Tensor)]:
        raise ValueError(f"{strange[0]} is no tensor: save this model with torch.save, and state_dict() beside it")
    tensors = {name: whole(t.detach()) for name, t in state.items()}
    budget = sparsifier.measure()
    together = any(map(sharded, sparsifier.targets))
    try:
        # All processes of a sharded model take part in gathering, one of them writes.
        if not together or dist.get_rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            write_state(folder / STATE_FILE, tensors, snapshot(sparsifier))
            budget.save(folder / BUDGET)
    finally:
        if together:
            dist.barrier()


def load_folder(sparsifier: Sparsifier, folder: Path) -> None:
    path = folder / STATE_FILE
    if not path.is_file():
        raise ValueError(f"{folder} has no {STATE_FILE}: pass a folder that Sparsifier.save wrote")
    tensors, state = read_state(path)
    _check(sparsifier, state)
    expected, found = _shapes_when(sparsifier, state["frozen"]), {name: tuple(t.shape) for name, t in tensors.items()}
    if wrong := sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name)):
        raise ValueError(
            f"the state does not fit this model: {len(wrong)} tensors differ, the first is {wrong[0]} "
            f"({expected.get(wrong[0], 'absent')} here, {found.get(wrong[0], 'absent')} in the file)"
        )
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
