"""Shrinking: a network with dead channels becomes a smaller network without them."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from softprune.core.state_file import read_tensors
from softprune.deploy.export.exporting import plain_module
from softprune.records import parse_json, read_text, write_text, write_whole
from softprune.structure.channels import Reader, Values
from softprune.structure.network import Left, Network, Removal, decide, follow, left_over, taken_over
from softprune.structure.program import Example, batch_of_two
from softprune.structure.rules import CONVOLUTIONS, NORMS, TRANSPOSED


@dataclass(frozen=True)
class Cut:
    """What stays of a layer."""

    inputs: tuple[int, ...]  # channels that it still reads, rising
    outputs: tuple[int, ...]  # channels that it still makes; of a norm the same
    bias: bool = False  # whether it gets one that it did not have


def sizes(module: nn.Module) -> tuple[int, int]:
    """How many channels a layer reads and makes."""
    if isinstance(module, NORMS):
        return module.num_features, module.num_features
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    assert isinstance(module, CONVOLUTIONS + TRANSPOSED)
    return module.in_channels, module.out_channels


@torch.no_grad()
def cut(module: nn.Module, what: Cut) -> None:
    """Take the other channels out of a layer, in place."""
    inputs, outputs = list(what.inputs), list(what.outputs)
    if isinstance(module, NORMS):
        for name in ("weight", "bias", "running_mean", "running_var"):
            _pick(module, name, outputs)
        module.num_features = len(outputs)
        return
    if what.bias and module.bias is None:
        weight = module.weight
        assert isinstance(weight, Tensor)
        module.bias = nn.Parameter(weight.new_zeros(sizes(module)[1]), requires_grad=weight.requires_grad)
    _pick(module, "bias", outputs)
    if isinstance(module, nn.Linear):
        _replace(module, "weight", module.weight[outputs][:, inputs])
        module.in_features, module.out_features = len(inputs), len(outputs)
        return
    assert isinstance(module, CONVOLUTIONS + TRANSPOSED)
    if module.groups == module.in_channels and module.groups > 1:  # depthwise
        _replace(module, "weight", module.weight[inputs if isinstance(module, TRANSPOSED) else outputs])
        module.groups = len(inputs)
    else:
        _replace(module, "weight", _per_group(module, inputs, outputs))
    module.in_channels, module.out_channels = len(inputs), len(outputs)


def _per_group(module: nn.Module, inputs: Sequence[int], outputs: Sequence[int]) -> Tensor:
    """The weight that stays of a convolution, whose groups have channels of their own on both sides."""
    assert isinstance(module, CONVOLUTIONS + TRANSPOSED)
    turned = isinstance(module, TRANSPOSED)
    wide_in, wide_out = module.in_channels // module.groups, module.out_channels // module.groups
    rows, row_width = (inputs, wide_in) if turned else (outputs, wide_out)
    columns, column_width = (outputs, wide_out) if turned else (inputs, wide_in)
    parts = []
    for group in range(module.groups):
        mine = [r for r in rows if r // row_width == group]
        theirs = [c % column_width for c in columns if c // column_width == group]
        parts.append(module.weight[mine][:, theirs])
    return torch.cat(parts)


def _pick(module: nn.Module, name: str, kept: list[int]) -> None:
    found = getattr(module, name)
    if found is not None:
        _replace(module, name, found[kept])


def _replace(module: nn.Module, name: str, value: Tensor) -> None:
    old, new = getattr(module, name), value.clone()
    setattr(module, name, nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new)


FORMAT, VERSION = "softprune-shrink", 1
LAYERS = (*CONVOLUTIONS, *TRANSPOSED, *NORMS, nn.Linear)  # what can be cut


@dataclass(frozen=True)
class Recipe:
    """What stays of every layer that gets smaller; as a file, a network is made small again with it."""

    layers: Mapping[str, Cut]  # by the path of the module

    def check(self, model: nn.Module) -> None:
        """Refuse a network that this recipe is not for; the ValueError names the layer."""
        modules = dict(model.named_modules())
        for path, what in self.layers.items():
            module = modules.get(path)
            if not isinstance(module, LAYERS):
                raise ValueError(f"the recipe is of another network: it has a layer {path!r}, this one has not")
            for kept, size, side in zip((what.inputs, what.outputs), sizes(module), ("reads", "makes"), strict=True):
                if kept[-1] >= size:
                    raise ValueError(
                        f"the recipe is of another network: it keeps channel {kept[-1]} of what {path} {side}, "
                        f"which has {size} channels"
                    )

    def apply(self, model: nn.Module) -> nn.Module:
        """Make a network of the original size small, in place, unless `check` refuses it."""
        self.check(model)
        for path, what in self.layers.items():
            cut(model.get_submodule(path), what)
        return model

    def save(self, path: str | os.PathLike[str]) -> Path:
        return write_text(path, self.to_json() + "\n")

    def to_json(self) -> str:
        layers = {path: asdict(what) for path, what in self.layers.items()}
        return json.dumps({"format": FORMAT, "version": VERSION, "layers": layers})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recipe:
        return cls.from_json(read_text(_there(path)), origin=str(path))

    @classmethod
    def from_json(cls, text: str, *, origin: str) -> Recipe:
        content = parse_json(text, origin)
        if content.get("format") != FORMAT or content.get("version") != VERSION:
            raise ValueError(f"{origin} is not a recipe of version {VERSION} by which a network was made smaller")
        layers = content.get("layers")
        if not isinstance(layers, dict):
            raise ValueError(f"{origin}: layers must be an object of layers")
        return cls({name: _read_cut(f"{origin}: {name}", value) for name, value in layers.items()})


def _read_cut(where: str, value: Any) -> Cut:
    fits = isinstance(value, dict) and set(value) == {"inputs", "outputs", "bias"}
    if not fits or not isinstance(value["bias"], bool):
        raise ValueError(f"{where} must have inputs, outputs and bias")
    for kept in (value["inputs"], value["outputs"]):
        right = isinstance(kept, list) and kept and all(type(n) is int and n >= 0 for n in kept)
        if not right or any(a >= b for a, b in pairwise(kept)):
            raise ValueError(f"{where}: channels are rising whole numbers from 0 on, at least one")
    return Cut(tuple(value["inputs"]), tuple(value["outputs"]), value["bias"])


def _there(path: str | os.PathLike[str]) -> Path:
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no {path}: name a folder that Shrunk.save wrote")
    return Path(path)


# How far the output may be from that of the network with its dead channels, relative to its largest value.
TOLERANCE = 1e-5
WEIGHTS, RECIPE = "model.safetensors", "shrink.json"


@dataclass(frozen=True)
class Shrunk:
    """A smaller network. Print it to read what was done."""

    model: nn.Module  # a copy without the dead channels
    recipe: Recipe  # which channels stayed
    left: tuple[Left, ...]  # dead channels that could not be removed, with the reasons
    before: int  # the number of parameters
    after: int

    def __str__(self) -> str:
        head = f"{self.before:,} parameters, {self.after:,} without dead channels; {len(self.recipe.layers)} layers cut"
        return "\n".join([head, *map(str, self.left)])

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the weights and the recipe; `rebuild` reads them.

        Each file is written whole or not at all, and the weights carry the recipe as well: if the process ends between
        the two files, a folder that was there before still has weights with their own recipe.
        """
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        own = {FORMAT: self.recipe.to_json()}
        write_whole(target / WEIGHTS, lambda part: save_model(self.model, str(part), metadata=own))
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
        ValueError: if the model is still managed by a Sparsifier or parametrized, or torch.export cannot follow it.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> with torch.no_grad():
        ...     net[0].weight[2:], net[0].bias[2:] = 0.0, 0.0
        >>> shrink(net, torch.zeros(1, 4)).model[0]
        Linear(in_features=4, out_features=2, bias=True)
    """
    model = plain_module(model)
    _refuse_computed(model)
    inputs = batch_of_two(example)
    original = copy.deepcopy(model).cpu().float().eval()
    network, values = follow(original, inputs), Values(original)
    removal = decide(network, values)
    (small, recipe), left = _largest(original, network, removal, inputs)
    counts = [sum(p.numel() for p in one.parameters()) for one in (original, small)]
    return Shrunk(small, recipe, (*left_over(network, values, removal), *left), counts[0], counts[1])


def rebuild(model: nn.Module, folder: str | os.PathLike[str]) -> nn.Module:
    """The smaller network that `Shrunk.save` wrote, from one of the original constructor, in place.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged, or the folder is of another network. The model is untouched in all cases.
    """
    recipe = Recipe.load(Path(folder, RECIPE))
    state, own = _read(Path(folder, WEIGHTS))
    recipe = recipe if own is None else own
    small = recipe.apply(copy.deepcopy(model))
    try:
        missing = small.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise ValueError(f"{folder} is of another network: {error}") from error
    # Tied tensors are written once, so a name may be missing whose memory another name has filled.
    held = small.state_dict()
    written = {held[name].data_ptr() for name in state if name in held}
    absent = [name for name in missing.missing_keys if held[name].data_ptr() not in written]
    if missing.unexpected_keys or absent:
        strange = [*missing.unexpected_keys, *missing.missing_keys]
        raise ValueError(f"{folder} is of another network: {', '.join(strange[:5])}")
    recipe.apply(model)
    model.load_state_dict(small.state_dict())
    return model.eval()


def _read(path: Path) -> tuple[dict[str, Tensor], Recipe | None]:
    """The weights of a file, and the recipe in its header; older files have none there."""
    tensors, header = read_tensors(_there(path))
    text = header.get(FORMAT)
    return tensors, None if text is None else Recipe.from_json(text, origin=f"the header of {path}")


def _refuse_computed(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if isinstance(module, LAYERS) and module.weight is not None and "weight" not in module._parameters:
            raise ValueError(
                f"the weight of {path or 'the model'} is computed from other tensors (a parametrization, or a mask of "
                "torch.nn.utils.prune): take that off first, such as with "
                "torch.nn.utils.parametrize.remove_parametrizations or torch.nn.utils.prune.remove"
            )


def _largest(
    model: nn.Module, network: Network, removal: Removal, inputs: tuple[Tensor, ...]
) -> tuple[tuple[nn.Module, Recipe], list[Left]]:
    """Take out everything at once; where the network then computes something else, only the parts it can spare."""
    wanted = _outputs(model, inputs)
    everything = _without(model, network, removal)
    if _fault(everything[0], inputs, wanted) is None:
        return everything, []
    stood = replace(removal, gone=torch.zeros_like(removal.gone))
    left = []
    for part, path in _parts(network, removal.gone):
        more = replace(stood, gone=stood.gone.clone())
        more.gone[list(part)] = True
        fault = _fault(_without(model, network, more)[0], inputs, wanted)
        if fault is None:
            stood = more
        else:
            left.append(Left(path, len(part), fault))
    return _without(model, network, stood), left


def _parts(network: Network, gone: Tensor) -> list[tuple[set[int], str]]:
    """Channels that one layer makes go together, each with those of the layers that share some with it."""
    parts: list[tuple[set[int], str]] = []
    for place in network.places:
        mine = set(place.outputs[gone[place.outputs]].tolist())
        touched = [p for p in parts if p[0] & mine]
        if mine and not touched:
            parts.append((mine, place.reader.path))
        elif mine:
            touched[0][0].update(mine, *(p[0] for p in touched[1:]))
            parts = [p for p in parts if not any(p is t for t in touched[1:])]
    return parts


@torch.no_grad()
def _without(model: nn.Module, network: Network, removal: Removal) -> tuple[nn.Module, Recipe]:
    small = copy.deepcopy(model)
    cuts: dict[str, Cut] = {}
    for place in network.places:
        reader = place.reader
        if reader.path in cuts:
            continue
        module = small.get_submodule(reader.path)
        inputs, outputs = (tuple((~removal.gone[side]).nonzero().flatten().tolist()) for side in place.sides)
        shift = _shift(module, reader, taken_over(place, removal))
        if (len(inputs), len(outputs)) == sizes(module) and shift is None:
            continue
        cuts[reader.path] = Cut(inputs, outputs, bias=shift is not None and module.bias is None)
        cut(module, cuts[reader.path])
        if shift is not None:
            module.bias += shift[list(outputs)].to(module.bias)  # type: ignore[operator,arg-type]
    return small, Recipe(cuts)


def _shift(module: nn.Module, reader: Reader, constant: Tensor | None) -> Tensor | None:
    """What the constant inputs that are removed have added to each output."""
    if constant is None:
        return None
    weight: Any = module.weight
    taps = weight.detach().double().flatten(2).sum(2) if weight.ndim > 2 else weight.detach().double()
    return (taps.view(reader.groups, -1, taps.shape[1]) @ constant.view(reader.groups, -1, 1)).flatten()


def _outputs(model: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        # Not the example itself, which may be all zeros.
        made = model(*(torch.randn(x.shape, generator=generator) for x in inputs))
    return [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]


def _fault(model: nn.Module, inputs: tuple[Tensor, ...], wanted: list[Tensor]) -> str | None:
    """What is wrong with a smaller network; None if its outputs are the wanted ones within `TOLERANCE`."""
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
