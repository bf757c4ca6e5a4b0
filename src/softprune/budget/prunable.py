"""Which tensors of a model are prunable, found by module type."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

# Module type -> names of its weight tensors. MultiheadAttention's output projection is a Linear of its
# own; recurrent modules number their tensors by layer and are asked for them.
_LAYERS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag),
)
_ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


@dataclass(frozen=True)
class PrunableTensor:
    """One prunable tensor: its name, where it lives, and the Parameter that is trained.

    ``name`` is the plain attribute path (``conv.weight``) also while the tensor is parametrized;
    ``parameter`` is then the tensor before the parametrization.
    """

    name: str
    module: nn.Module
    tensor: str
    parameter: nn.Parameter


def prunable_tensors(model: nn.Module) -> list[PrunableTensor]:
    """The weights of convolutions, linear, bilinear, embedding, attention and recurrent modules.

    A Parameter of several modules (tied weights) is listed under each name; a module used twice is
    listed once. Left out are weights
    that are no Parameter: those computed by hooks (``torch.nn.utils.prune``, the old
    ``weight_norm``) or from several originals (``parametrizations.weight_norm``).

    Returns:
        The tensors in the order of ``model.named_modules()``.

    Example:
        >>> from torch import nn
        >>> [t.name for t in prunable_tensors(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))]
        ['0.weight']
    """
    found = []
    for path, module in model.named_modules():
        for tensor in weight_names(module):
            parameter = _parameter(module, tensor)
            if parameter is not None:
                found.append(_checked(path, module, tensor, parameter))
    return found


def parametrization(module: nn.Module, tensor: str) -> parametrize.ParametrizationList | None:
    """The parametrization of one tensor of ``module``, if it has one."""
    found = module._modules.get("parametrizations")
    if isinstance(found, nn.ModuleDict) and tensor in found:
        transforms = found[tensor]
        return transforms if isinstance(transforms, parametrize.ParametrizationList) else None
    return None


def named_tensors(model: nn.Module, names: Sequence[str]) -> list[PrunableTensor]:
    """The parameters called ``names``, of any module type, in the given order."""
    modules = dict(model.named_modules(remove_duplicate=False))
    found, unknown = [], []
    for name in names:
        path, _, tensor = name.rpartition(".")
        parameter = _parameter(modules[path], tensor) if path in modules else None
        if parameter is None:
            unknown.append(name)
        else:
            found.append(_checked(path, modules[path], tensor, parameter))
    if unknown:
        raise ValueError(f"the model has no parameter {', '.join(unknown)}; names are attribute paths like 'fc.weight'")
    return found


def weight_names(module: nn.Module) -> Sequence[str]:
    """The attributes of one module that hold its weights, whatever is behind them."""
    if isinstance(module, _LAYERS):
        return ("weight",)
    if isinstance(module, nn.MultiheadAttention):
        return _ATTENTION
    if isinstance(module, nn.RNNBase):
        return [name for name in module._flat_weights_names if name.startswith("weight_")]
    if isinstance(module, nn.RNNCellBase):
        return ("weight_ih", "weight_hh")
    return ()


def _parameter(module: nn.Module, tensor: str) -> nn.Parameter | None:
    transforms = parametrization(module, tensor)
    if transforms is None:
        return module._parameters.get(tensor)
    return transforms._parameters.get("original")


def _checked(path: str, module: nn.Module, tensor: str, parameter: nn.Parameter) -> PrunableTensor:
    name = f"{path}.{tensor}" if path else tensor
    if is_lazy(parameter):
        raise ValueError(f"{name} has no shape yet: run the model once so that its lazy modules are made")
    return PrunableTensor(name, module, tensor, parameter)


def first_names(tensors: Sequence[PrunableTensor]) -> list[PrunableTensor]:
    """One entry for each Parameter: of tied tensors the first name stays."""
    seen: dict[nn.Parameter, PrunableTensor] = {}
    for entry in tensors:
        seen.setdefault(entry.parameter, entry)
    return list(seen.values())
