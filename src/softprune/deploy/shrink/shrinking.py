"""shrink: from a network with dead channels to one without them."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softprune.deploy.export.capture import Example, batch_of_two, plain_module
from softprune.deploy.shrink.channel import Reader
from softprune.deploy.shrink.cut import Cut, cut, sizes
from softprune.deploy.shrink.following import follow
from softprune.deploy.shrink.recipe import Recipe
from softprune.deploy.shrink.removal import Left, decide
from softprune.deploy.shrink.walk import Walk

# How far the output may be from that of the network with its dead channels, relative to its largest value.
TOLERANCE = 1e-5
WEIGHTS, RECIPE = "model.safetensors", "shrink.json"


@dataclass(frozen=True)
class Shrunk:
    """A smaller network. Print it to read what was done.

    Attributes:
        model: a copy without the dead channels.
        recipe: which channels stayed.
        left: dead channels that could not be removed, with the reasons.
        before: parameters that the network had.
        after: parameters that it has.
    """

    model: nn.Module
    recipe: Recipe
    left: tuple[Left, ...]
    before: int
    after: int

    def __str__(self) -> str:
        head = f"{self.before:,} parameters, {self.after:,} without dead channels; {len(self.recipe.layers)} layers cut"
        return "\n".join([head, *map(str, self.left)])

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the weights and the recipe; `rebuild` reads them."""
        from safetensors.torch import save_model

        from softprune.budget.files import write_whole

        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        write_whole(target / WEIGHTS, lambda part: save_model(self.model, str(part)))
        self.recipe.save(target / RECIPE)
        return target


def shrink(model: nn.Module, example: Example) -> Shrunk:
    """Take every channel out of a network that is zero, or constant, or that nothing reads.

    A filter is dead if its weights are zero; with its norm and activation it must come to a constant wherever it is
    read, or it stays and is listed. Works through residual connections, concatenations, batch norm, grouped and
    depthwise convolutions; what it cannot follow keeps all its channels.

    Args:
        model: baked, or any other with zeros in its weights, in float32; left as it was.
        example: one input or a tuple of them, float32, with a batch of any size.

    Returns:
        A smaller copy in eval mode whose outputs equal those of the model, what was cut, and what was not.

    Raises:
        ValueError: if the model is still managed by a Sparsifier, or torch.export cannot follow it.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> with torch.no_grad():
        ...     net[0].weight[2:], net[0].bias[2:] = 0.0, 0.0
        >>> shrink(net, torch.zeros(1, 4)).model[0]
        Linear(in_features=4, out_features=2, bias=True)
    """
    model = plain_module(model)
    inputs = batch_of_two(example)
    original = copy.deepcopy(model).cpu().float().eval()
    walk = follow(original, inputs)
    removal = decide(walk)
    found, left = _largest(original, walk, removal.gone, inputs)
    small, recipe = found
    counts = [sum(p.numel() for p in one.parameters()) for one in (original, small)]
    return Shrunk(small, recipe, (*removal.left, *left), counts[0], counts[1])


def rebuild(model: nn.Module, folder: str | os.PathLike[str]) -> nn.Module:
    """The smaller network that `Shrunk.save` wrote, from one of the original constructor, in place.

    Raises:
        ValueError: if the folder is of another network; the model is untouched then.
    """
    from safetensors.torch import load_file

    recipe = Recipe.load(Path(folder, RECIPE))
    small = recipe.apply(copy.deepcopy(model))
    state = load_file(str(Path(folder, WEIGHTS)))
    missing = small.load_state_dict(state, strict=False)
    tied = {k for k in missing.missing_keys if small.state_dict()[k].data_ptr() in _pointers(small, state)}
    if missing.unexpected_keys or set(missing.missing_keys) - tied:
        strange = [*missing.unexpected_keys, *missing.missing_keys]
        raise ValueError(f"{folder} is of another network: {', '.join(strange[:5])}")
    recipe.apply(model)
    model.load_state_dict(small.state_dict())
    return model.eval()


def _pointers(model: nn.Module, names: Iterable[str]) -> set[int]:
    """Tied tensors are written once: where those are that have been written."""
    held = model.state_dict()
    return {held[name].data_ptr() for name in names if name in held}


def _largest(
    model: nn.Module, walk: Walk, gone: set[int], inputs: tuple[Tensor, ...]
) -> tuple[tuple[nn.Module, Recipe], list[Left]]:
    """Take out everything at once; if the network's own code does not stand it, what it does stand, part by part."""
    wanted = _outputs(model, inputs)
    everything = _without(model, walk, gone)
    if _fault(everything[0], inputs, wanted) is None:
        return everything, []
    kept: set[int] = set()
    left = []
    for part, path in _parts(walk, gone):
        fault = _fault(_without(model, walk, kept | part)[0], inputs, wanted)
        if fault is None:
            kept |= part
        else:
            left.append(Left(path, len(part), fault))
    return _without(model, walk, kept), left


def _parts(walk: Walk, gone: set[int]) -> list[tuple[set[int], str]]:
    """Channels that one layer makes go together, each with those of the layers that share some with it."""
    parts: list[tuple[set[int], str]] = []
    for reader in walk.readers:
        mine = {walk.channels.find(c) for c in reader.outputs} & gone
        touched = [p for p in parts if p[0] & mine]
        if mine and not touched:
            parts.append((mine, reader.path))
        elif mine:
            touched[0][0].update(mine, *(p[0] for p in touched[1:]))
            parts = [p for p in parts if not any(p is t for t in touched[1:])]
    return parts


@torch.no_grad()
def _without(model: nn.Module, walk: Walk, gone: set[int]) -> tuple[nn.Module, Recipe]:
    small = copy.deepcopy(model)
    cuts: dict[str, Cut] = {}
    for reader in walk.readers:
        if reader.path in cuts:
            continue
        module = small.get_submodule(reader.path)
        inputs, outputs = (
            tuple(i for i, c in enumerate(side) if walk.channels.find(c) not in gone)
            for side in (reader.inputs, reader.outputs)
        )
        shift = _shift(module, reader, inputs)
        if (len(inputs), len(outputs)) == sizes(module) and shift is None:
            continue
        cuts[reader.path] = Cut(inputs, outputs, bias=shift is not None and module.bias is None)
        cut(module, cuts[reader.path])
        if shift is not None:
            module.bias += shift[list(outputs)].to(module.bias)  # type: ignore[operator,arg-type]
    return small, Recipe(cuts)


def _shift(module: nn.Module, reader: Reader, kept: tuple[int, ...]) -> Tensor | None:
    """What the constant inputs that go have added to the outputs."""
    if reader.kind not in ("convolution", "linear") or not reader.exact or reader.depthwise:
        return None
    constant = torch.nan_to_num(reader.constant).clone()
    constant[list(kept)] = 0.0
    if not constant.any():
        return None
    weight: Any = module.weight
    taps = weight.detach().double().flatten(2).sum(2) if weight.ndim > 2 else weight.detach().double()
    groups = reader.groups
    parts = taps.view(groups, -1, taps.shape[1]) @ constant.view(groups, -1, 1)
    return parts.flatten()


def _outputs(model: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    from torch.utils._pytree import tree_leaves

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        # Not the example itself, which may be all zeros.
        made = model(*(torch.randn(x.shape, generator=generator) for x in inputs))
    return [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]


def _fault(model: nn.Module, inputs: tuple[Tensor, ...], wanted: list[Tensor]) -> str | None:
    """What is wrong with a smaller network, if anything is."""
    try:
        made = _outputs(model, inputs)
    except Exception as error:  # the network's own code may count on a number of channels
        return f"the network does not run without them: {error}"
    for one, other in zip(made, wanted, strict=True):
        if one.shape != other.shape:
            return f"without them an output has shape {tuple(one.shape)} and not {tuple(other.shape)}"
        gap = float((one - other).abs().max() / other.abs().max().clamp(min=1e-30))
        if not gap <= TOLERANCE:
            return f"without them an output differs by {gap:.1e} of its largest value"
    return None
