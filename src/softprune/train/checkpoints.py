"""The checkpoints of a run: whole files only, the last few kept, none ever unpickled."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from softprune.core.groups import placed_like, whole
from softprune.core.state_file import read_state, write_state
from softprune.train.assembly import Assembly, Processes

FORMAT, VERSION = "softprune-checkpoint", 1
BEST = "best.safetensors"
_REGULAR = re.compile(r"step-(\d{9,})\.safetensors")
Checkpoint = tuple[dict[str, Tensor], dict[str, Any]]  # its tensors and facts


class Checkpoints:
    """The folder ``checkpoints`` of a run: as many of the regular ones as are to be kept, and the best one."""

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def save(self, parts: Assembly, progress: Mapping[str, Any], *, best: bool = False) -> Path:
        """Gather the state from all processes; the first one writes it."""
        tensors, facts = _collect(parts)
        facts |= {"format": FORMAT, "version": VERSION, "progress": dict(progress)}
        path = self.folder / (BEST if best else _regular_name(progress["step"]))
        problem = None
        if parts.processes.first:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                write_state(path, tensors, facts)
                for old in self.regular()[: -self.keep]:
                    old.unlink()
            except OSError as error:
                problem = f"{error}; the checkpoints before it are intact, go on from them with --resume"
        if problem := parts.processes.from_first(problem):
            raise OSError(problem)
        return path

    def regular(self) -> list[Path]:
        """The files of the regular checkpoints, oldest first; those that were set aside do not count."""
        found = [(int(match[1]), path) for path in self.folder.glob("*") if (match := _REGULAR.fullmatch(path.name))]
        return [path for _, path in sorted(found)]

    def newest(self, notes: list[str], unreadable: list[Path]) -> Checkpoint | None:
        """The newest checkpoint that can be read; None if there is no file, a ValueError if none can be read.

        What is wrong with newer ones is added to `notes`, their files to `unreadable`, for `set_aside`.
        """
        files, problems = self.regular(), []
        for path in reversed(files):
            try:
                found = read_checkpoint(path, notes)
                step = found[1]["progress"].get("step")
                # The name orders the files: one that belongs to another step is of another run, or was renamed.
                if path.name != _regular_name(step):
                    raise ValueError(
                        f"{path} holds step {step!r}, which is not that of its name: it is of another run, or renamed"
                    )
            except ValueError as error:
                problems.append((path, str(error)))
                continue
            notes += [f"{problem}; going back to the checkpoint before it" for _, problem in problems]
            unreadable += [path for path, _ in problems]
            return found
        if problems:
            raise ValueError(
                f"none of the {len(files)} checkpoints in {self.folder} can be read: {problems[0][1]}. Nothing was "
                "changed. To begin this run anew, move that folder away and use --resume again"
            )
        return None


def _regular_name(step: Any) -> str:
    return f"step-{step:09d}.safetensors" if isinstance(step, int) else ""


def set_aside(path: Path) -> str:
    """Rename a checkpoint that cannot be read, so that nobody takes it for one; returns a sentence about it."""
    place, number = path.with_name(f"{path.name}.unreadable"), 1
    while place.exists():
        number += 1
        place = path.with_name(f"{path.name}.unreadable-{number}")
    path.rename(place)
    return f"{path.name} is kept as {place.name}"


def read_checkpoint(path: Path, notes: list[str] | None = None) -> Checkpoint:
    """The checkpoint in a file; what is missing, damaged, of another kind or version is refused by a ValueError."""
    tensors, facts = read_state(path, notes)
    if facts.get("format") != FORMAT or facts.get("version") != VERSION:
        kind, version = facts.get("format"), facts.get("version")
        raise ValueError(f"{path} is {kind!r} version {version!r}; needed is {FORMAT!r} version {VERSION}")
    if missing := [key for key in ("progress", "optimizer", "scaler", "sparsifier", "random") if key not in facts]:
        raise ValueError(f"{path} is damaged: it has no {', '.join(missing)}")
    mappings = {key: facts[key] for key in ("progress", "optimizer", "scaler")}
    mappings |= {} if facts["sparsifier"] is None else {"sparsifier": facts["sparsifier"]}
    if isinstance(facts["optimizer"], dict):
        mappings |= {f"optimizer of {name}": state for name, state in facts["optimizer"].items()}
    if wrong := [key for key, value in mappings.items() if not isinstance(value, dict)]:
        raise ValueError(f"{path} is damaged: its {wrong[0]} is not a mapping")
    if not isinstance(facts["random"], list):
        raise ValueError(f"{path} is damaged: its random states are not a list")
    return tensors, facts


def _collect(parts: Assembly) -> Checkpoint:
    tensors = {f"model.{name}": whole(t) for name, t in parts.model.state_dict().items()}
    if parts.average is not None:
        tensors |= {f"average.{name}": whole(t) for name, t in parts.average.state_dict().items()}
    numbers: dict[str, dict[str, float | int | bool | None]] = {}
    for name, parameter in _named(parts):
        # Asking the optimizer for a state that it does not have would make one.
        for key, value in parts.optimizer.state[parameter].items() if parameter in parts.optimizer.state else ():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{name}.{key}"] = whole(value)
            else:
                numbers.setdefault(name, {})[key] = value
    facts = {
        "optimizer": numbers,
        "scaler": parts.scaler.state_dict(),
        "sparsifier": parts.sparsifier.state_dict() if parts.sparsifier else None,
        "random": _gather_random(parts.processes),
    }
    return tensors, facts


def restore(parts: Assembly, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Put a run back to where the checkpoint was made."""
    if parts.sparsifier is not None:
        parts.sparsifier.load_state_dict(facts["sparsifier"])
    load_(parts.model, tensors, "model.")
    if parts.average is not None:
        load_(parts.average, tensors, "average.")
    for name, parameter in _named(parts):
        prefix = f"optimizer.{name}."
        state: dict[str, Any] = dict(facts["optimizer"].get(name, {}))
        for key, value in tensors.items():
            if not key.startswith(prefix):
                continue
            # Momentum and the like have the parameter's shape and lie where it lies; step counters do not.
            if value.shape == parameter.shape:
                value = placed_like(value.to(parameter.device), parameter)
            state[key.removeprefix(prefix)] = value
        if state:
            parts.optimizer.state[parameter] = state
    parts.scaler.load_state_dict(facts["scaler"])
    _set_random(facts["random"], parts.processes)


def weights_prefix(*, average: bool) -> str:
    """What the names of the weights to evaluate begin with in a checkpoint."""
    return "average.module." if average else "model."


def load_(module: nn.Module, tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Put the tensors whose names begin with the prefix into a module that is managed as it was then."""
    mine = module.state_dict()
    given = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
    module.load_state_dict({k: placed_like(t, mine[k]) if k in mine else t for k, t in given.items()})


def _named(parts: Assembly) -> list[tuple[str, nn.Parameter]]:
    """The parameters of the optimizer with their names in the model, each once."""
    names = {id(p): name for name, p in parts.model.named_parameters()}
    return [(names[id(p)], p) for group in parts.optimizer.param_groups for p in group["params"]]


def _gather_random(processes: Processes) -> list[dict[str, Any]]:
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    inner = numpy_state["state"]
    mine = {
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "python": random.getstate(),
        "numpy": {"key": inner["key"].tolist(), "pos": int(inner["pos"]), "has_gauss": int(numpy_state["has_gauss"]),
                  "gauss": float(numpy_state["gauss"])},
    }  # fmt: skip
    if processes.device.type == "cuda":
        mine["cuda"] = torch.cuda.get_rng_state().numpy().tobytes().hex()
    if processes.world == 1:
        return [mine]
    everyone: list[Any] = [None] * processes.world
    dist.all_gather_object(everyone, mine)
    return everyone


def _set_random(states: list[dict[str, Any]], processes: Processes) -> None:
    # Of another number of processes there is no state to continue; the seed of the run has been set.
    if len(states) != processes.world:
        return
    mine = states[processes.rank]
    try:
        torch.set_rng_state(_bytes(mine["torch"]))
        if "cuda" in mine and processes.device.type == "cuda":
            torch.cuda.set_rng_state(_bytes(mine["cuda"]))
        version, internal, gauss = mine["python"]
        random.setstate((version, tuple(internal), gauss))
        saved = mine["numpy"]
        np.random.set_state(
            ("MT19937", np.array(saved["key"], dtype=np.uint32), saved["pos"], saved["has_gauss"], saved["gauss"])
        )
    except (TypeError, LookupError, ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(f"the checkpoint is damaged: its random state cannot be set ({error!r})") from error


def _bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
