"""Transforms on a module's tensors, built on `torch.nn.utils.parametrize` with its gaps closed.

A managed module holds torch's own `ParametrizationList`, so everything that knows parametrizations
(`is_parametrized`, `cached`, FSDP2, the recurrent layers) knows ours. Only the class that carries the
property is our own, because torch's

- cannot be pickled, and so cannot be saved whole or sent to a spawned process,
- is one per instance, which makes the compiler treat equal layers as different,
- is shared by a deep copy, and removing the parametrization from one copy breaks the other,
- loads no plain checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from softprune.core.groups import local
from softprune.methods.transforms import Transform


def register(module: nn.Module, tensor: str, transform: nn.Module) -> None:
    """Make ``module.<tensor>`` read as ``transform(raw)``; the Parameter object stays the same."""
    raw = module._parameters[tensor]
    assert raw is not None
    base = parametrize.type_before_parametrizations(module)
    # Ours keep shape and dtype; others are tried once.
    ours = type(transform).__module__.startswith("softprune.")
    transformed: Any = _OneTransform([transform], raw, unsafe=ours)
    transformed.order = tuple(module._parameters)  # for unregister; survives a copy, as it is no tensor
    del module._parameters[tensor]
    module._parameters = _ParametersLeft(module._parameters)
    if "parametrizations" not in module._modules:
        module.parametrizations = nn.ModuleDict()
    lists = module.parametrizations
    assert isinstance(lists, nn.ModuleDict)
    lists[tensor] = transformed
    module.__class__ = _managed_class(base, tuple(lists))


def unregister(module: nn.Module, tensor: str) -> nn.Parameter:
    """Give the module its own tensor, and with the last one its own class, back."""
    lists = module.parametrizations
    assert isinstance(lists, nn.ModuleDict)
    base = parametrize.type_before_parametrizations(module)
    raw = raw_parameter(module, tensor)
    order: Any = lists[tensor].order
    del lists[tensor]
    if len(lists):
        module.__class__ = _managed_class(base, tuple(lists))
    else:
        del module.parametrizations
        module.__class__ = base
        module._parameters = dict(module._parameters)
    module.register_parameter(tensor, raw)
    # Optimizers and their states know parameters by position: each goes back to where it stood. Of those that
    # stood behind it some may still be managed; the others move behind it.
    for name in order[order.index(tensor) + 1 :]:
        if name in module._parameters:
            module._parameters[name] = module._parameters.pop(name)
    return raw


def raw_parameter(module: nn.Module, tensor: str) -> nn.Parameter:
    """The Parameter that the optimizer moves; sharding may have replaced it."""
    return module.parametrizations[tensor].original  # type: ignore[index,union-attr,return-value]


def transform_of(module: nn.Module, tensor: str) -> Transform:
    return module.parametrizations[tensor][0]  # type: ignore[index,return-value]


def managed_tensors(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """(full name, module, tensor name) of every tensor under one of our transforms, in module order."""
    for path, module in model.named_modules():
        if issubclass(type(module), _Managed):
            for tensor in _own_tensors(module):
                yield (f"{path}.{tensor}" if path else tensor), module, tensor


def _own_tensors(module: nn.Module) -> list[str]:
    """The tensors under one of our transforms; others of the module may be under torch's own."""
    lists: Any = module.parametrizations
    return [tensor for tensor, transforms in lists.items() if isinstance(transforms[0], Transform)]


def inside_compiled(model: nn.Module) -> nn.Module:
    inner = getattr(model, "_orig_mod", None)  # torch.compile's wrapper
    return inner if isinstance(inner, nn.Module) else model


class Link:
    """From a managed tensor to the Sparsifier that manages it, or whose model this one is a copy of.

    A copy of the model is linked to the same Sparsifier, which it keeps alive, since it may need what that knows. In
    another process there is none: it is no state.
    """

    def __init__(self, sparsifier: Any = None, name: str = "") -> None:
        self.sparsifier, self.name = sparsifier, name  # the name of the tensor in the model of the Sparsifier
        self.copied = False
        # Of the raw tensor of a copy as it was when the model was copied, or when the copy was loaded.
        self.mark: Tensor | None = None

    def __deepcopy__(self, memo: Any) -> Link:
        twin = Link(self.sparsifier, self.name)
        # A copy of an average is no less an average.
        twin.copied, twin.mark = True, self.mark
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        return Link, ()


def link_of(module: nn.Module, tensor: str) -> Link:
    """The link of a managed tensor; an empty one where no Sparsifier is known."""
    return getattr(module.parametrizations[tensor], "link", None) or Link()  # type: ignore[index,union-attr]


def unwritten(module: nn.Module, tensor: str) -> bool:
    """Whether the raw tensor of a copy is as it was copied, so that its masks and thresholds belong to it.

    An average has weights that were written since, and masks of whatever moment.
    """
    mark = link_of(module, tensor).mark
    if mark is None:
        return False
    then, now = mark.tolist(), _mark(raw_parameter(module, tensor)).tolist()
    # Another device, to which it may have been moved, adds in another order.
    return all(abs(a - b) <= 1e-12 * then[1] for a, b in zip(then, now, strict=True))


@torch.no_grad()
def _mark(raw: Tensor) -> Tensor:
    # By content: what is written through .data has no version that counts.
    raw = local(raw)
    return torch.stack([raw.sum(dtype=torch.float64), raw.abs().sum(dtype=torch.float64)])


class _OneTransform(parametrize.ParametrizationList):
    """The transform of one tensor, beside which there is no other parametrization."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:  # noqa: FBT001, FBT002
        on_meta = self.original.device.type == "meta"
        super()._apply(fn, recurse)
        if on_meta and self.original.device.type != "meta":
            # What to_empty leaves looks like weights; NaN is seen if nobody writes over it.
            with torch.no_grad():
                self.original.fill_(float("nan"))
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        link = getattr(self, "link", None)
        if link is not None and link.mark is None:
            self._remember()

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)  # type: ignore[no-untyped-call]
        self._remember()

    def _remember(self) -> None:
        link = getattr(self, "link", None)
        if link is not None and link.copied:
            link.mark = None if self.original.device.type == "meta" else _mark(self.original)

    def append(self, module: nn.Module) -> Any:
        raise ValueError(
            f"a sparsified weight cannot get the parametrization {type(module).__name__} (weight_norm, spectral_norm "
            "and the like) as well: baking would drop it. Leave this weight out with sparsify(..., skip=[...]), or "
            "bake() first"
        )


class _ParametersLeft(dict):  # type: ignore[type-arg]
    """The parameters of a managed module; what looks for a managed one by its old name is told why it cannot work."""

    def __missing__(self, name: str) -> Any:
        raise _no_parameter(name)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise _no_parameter(name)
        super().__delitem__(name)


def _no_parameter(name: str) -> ValueError:
    return ValueError(
        f"{name} is no parameter while it is sparsified, so hooks that replace it (torch.nn.utils.weight_norm, "
        "spectral_norm, prune) cannot work: leave it out with sparsify(..., skip=[...]), or bake() first"
    )


# In the __dict__ of a module whose tensors read as the raw ones.
_RAW = "_softprune_raw"


class _Managed:
    """Marks the classes made here; carries no state."""


class _KeepsProperties(type):
    """A class that many modules share, while torch takes it for the own class of one of them.

    `parametrize.remove_parametrizations` on one module must not take the property from the others, and
    `parametrize.register_parametrization` on one must not give them a property that they cannot answer.
    """

    def __delattr__(cls, name: str) -> None:
        if not isinstance(cls.__dict__.get(name), property):
            super().__delattr__(name)

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, _effective_property(name) if isinstance(value, property) else value)


@cache
def _managed_class(base: type, tensors: tuple[str, ...]) -> type:
    """The class of every module of type `base` with these tensors managed: equal layers share one class."""
    meta: Any = _KeepsProperties
    if not issubclass(_KeepsProperties, type(base)):
        meta = type("_KeepsProperties", (_KeepsProperties, type(base)), {})

    def reduce(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
        state = dict(self.__getstate__()) if hasattr(base, "__getstate__") else dict(self.__dict__)
        # Recurrent layers keep their effective weights in a list; these are results, not state.
        if "_flat_weights" in state:
            state["_flat_weights"] = []
        return _rebuild, (base, tuple(self.parametrizations)), state  # type: ignore[arg-type]

    def setstate(self: nn.Module, state: dict[str, Any]) -> None:
        base.__setstate__(self, state)  # type: ignore[attr-defined]
        if isinstance(self, nn.RNNBase):
            self._init_flat_weights()

    def load(self: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for tensor in _own_tensors(self):
            _adopt_plain_tensor(self, tensor, state_dict, prefix)
        base._load_from_state_dict(self, state_dict, prefix, *rest)  # type: ignore[attr-defined]

    def raw_reset(name: str) -> Any:
        def reset(self: nn.Module) -> None:
            # It writes in place, which would be lost in the effective weights.
            self.__dict__[_RAW] = True
            try:
                getattr(base, name)(self)
            finally:
                del self.__dict__[_RAW]
            for tensor in _own_tensors(self):
                transform_of(self, tensor).reset_parameters()

        return reset

    def refuse_script(self: nn.Module) -> None:
        raise ValueError(
            f"torch.jit.script cannot compile a sparsified {base.__name__}, whose weights are computed: bake() first"
        )

    def register_parameter(self: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        # Pruning moves the tensor to such a name before it looks for anything else.
        if name.removesuffix("_orig") in self.parametrizations:  # type: ignore[operator]
            raise _no_parameter(name.removesuffix("_orig"))
        base.register_parameter(self, name, parameter)  # type: ignore[attr-defined]

    def delete(self: nn.Module, name: str) -> None:
        taken = name in self._parameters or name in self._buffers
        plain: Any = base
        plain.__delattr__(self, name)
        if taken and "parametrizations" in self._modules:
            # torch's own parametrizations take a tensor away like this, and then put a property into the class: into
            # one of its own, not into the one that this layer shares with others.
            self.__class__ = _managed_class.__wrapped__(base, tuple(self.parametrizations))  # type: ignore[arg-type]

    body: dict[str, Any] = {tensor: _effective_property(tensor) for tensor in tensors}
    # MultiheadAttention has the second.
    body |= {name: raw_reset(name) for name in ("reset_parameters", "_reset_parameters") if hasattr(base, name)}
    body |= {"register_parameter": register_parameter, "__delattr__": delete}
    body |= {"__reduce_ex__": reduce, "__setstate__": setstate, "_load_from_state_dict": load}
    body |= {"__prepare_scriptable__": refuse_script}  # which torch.jit.script asks first
    return meta(f"Parametrized{base.__name__}", (base, _Managed), body)


def _rebuild(base: type, tensors: tuple[str, ...]) -> Any:
    cls: Any = _managed_class(base, tensors)
    return cls.__new__(cls)


def _effective_property(tensor: str) -> property:
    def read(self: nn.Module) -> Tensor:
        lists: Any = self._modules.get("parametrizations")
        if lists is None or tensor not in lists._modules:
            # Not, or no longer, parametrized in this module: nn.Module.__getattr__ finds the plain tensor.
            raise AttributeError(tensor)
        transforms = lists._modules[tensor]
        if _RAW in self.__dict__:
            return transforms.original
        # The key is this module; torch's own property uses the module it was first made for.
        if parametrize._cache_enabled:
            key = (id(self), tensor)
            kept: Any = parametrize._cache
            if key not in kept:
                kept[key] = transforms()
            return kept[key]
        # Once per tensor and forward pass: with a single transform the list's own forward would only look for more.
        if len(transforms._modules) == 1 and not transforms._forward_hooks and not transforms._forward_pre_hooks:
            original = transforms._parameters.get("original")
            if original is not None:
                return transforms._modules["0"](original)
        return transforms()

    def assign(self: nn.Module, effective: Tensor) -> None:
        transform = transform_of(self, tensor)
        if not isinstance(transform, Transform):
            self.parametrizations[tensor].right_inverse(effective)  # type: ignore[index,union-attr,operator]
            return
        raw = raw_parameter(self, tensor)
        if effective.shape != raw.shape:
            raise ValueError(
                f"{tensor} has shape {tuple(raw.shape)}, it cannot be set to a tensor of shape {tuple(effective.shape)}"
            )
        with torch.no_grad():
            raw.copy_(transform.raw_for(effective))

    return property(read, assign)


def _adopt_plain_tensor(module: nn.Module, tensor: str, state_dict: dict[str, Any], prefix: str) -> None:
    """Let a checkpoint of the plain model load: its tensor is the raw one, our thresholds stay as they are."""
    home = f"{prefix}parametrizations.{tensor}."
    if prefix + tensor not in state_dict or home + "original" in state_dict:
        return
    plain = state_dict[home + "original"] = state_dict.pop(prefix + tensor)
    transform = transform_of(module, tensor)
    if any(value.device.type == "meta" for value in transform.state_dict().values()):
        # load_state_dict(assign=True) puts a model that has no values where the checkpoint is.
        transform = deepcopy(transform).to_empty(device=plain.device)
    for key, value in transform.state_dict().items():
        state_dict.setdefault(f"{home}0.{key}", value)
