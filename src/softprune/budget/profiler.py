"""What the tensors of a model cost: which are prunable, and the multiply-adds of each, counted in a run that leaves
the model exactly as it was.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from softprune.budget.costs import Profile, TensorCost
from softprune.ops.recurrence.fused import OPERATOR as _RECURRENCE

# Prunable tensors are found by module type. MultiheadAttention's output projection is a Linear of its own; recurrent
# modules number their tensors by layer and are asked for them.
_LAYERS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    *(nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag),
)
_ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


@dataclass(frozen=True)
class PrunableTensor:
    """One prunable tensor."""

    name: str  # the attribute path such as conv.weight, also while the tensor is parametrized
    module: nn.Module
    tensor: str  # attribute of the module
    parameter: nn.Parameter  # what is trained: of a parametrized tensor its original


def prunable_tensors(model: nn.Module) -> list[PrunableTensor]:
    """The weights of convolutions, linear, bilinear, embedding, attention and recurrent modules.

    In the order of ``model.named_modules()``; a Parameter of several modules (tied weights) is listed under each name.
    Left out are weights that are no Parameter: those computed by hooks (``torch.nn.utils.prune``, the old
    ``weight_norm``) or from several originals (``parametrizations.weight_norm``).

    Example:
        >>> from torch import nn
        >>> [t.name for t in prunable_tensors(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))]
        ['0.weight']
    """
    return [
        _checked(path, module, tensor, parameter)
        for path, module in model.named_modules()
        for tensor in weight_names(module)
        if (parameter := _parameter(module, tensor)) is not None
    ]


def parametrization(module: nn.Module, tensor: str) -> parametrize.ParametrizationList | None:
    """The parametrization of one tensor of ``module``, if it has one."""
    found = module._modules.get("parametrizations")
    transforms = found[tensor] if isinstance(found, nn.ModuleDict) and tensor in found else None
    return transforms if isinstance(transforms, parametrize.ParametrizationList) else None


def named_tensors(model: nn.Module, names: Sequence[str]) -> list[PrunableTensor]:
    """The parameters called ``names``, of any module type, in the given order."""
    modules = dict(model.named_modules(remove_duplicate=False))
    found = {}
    for name in names:
        path, _, tensor = name.rpartition(".")
        if path in modules and (parameter := _parameter(modules[path], tensor)) is not None:
            found[name] = _checked(path, modules[path], tensor, parameter)
    if unknown := [name for name in names if name not in found]:
        raise ValueError(f"the model has no parameter {', '.join(unknown)}; names are attribute paths like 'fc.weight'")
    return [found[name] for name in names]


def weight_names(module: nn.Module) -> Sequence[str]:
    """The attributes of one module that hold its weights; some may be None or computed from others."""
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
    return module._parameters.get(tensor) if transforms is None else transforms._parameters.get("original")


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


@contextmanager
def sandbox(model: nn.Module) -> Iterator[None]:
    """A context to measure a model in: evaluation mode, no gradients, no fused kernels.

    Fused kernels (attention, recurrence) hide their products from a dispatch mode. Training flags, buffers, random
    state and switches are restored, also after an error.
    """
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=sorted(devices, key=str)))
        backends: tuple[Any, ...] = (torch.backends.mkldnn, torch.backends.cudnn)
        for backend in backends:
            # Not their flags(), which also sets other options and warns about them.
            stack.callback(setattr, backend, "enabled", backend.enabled)
            backend.enabled = False
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        if "torch._dynamo" in sys.modules:  # importing it takes seconds, and without it nothing is compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch.no_grad())
        buffers = [(m, n, b, b.clone()) for m in model.modules() for n, b in m._buffers.items() if b is not None]
        stack.callback(_restore, [(m, m.training) for m in model.modules()], buffers)
        model.eval()
        # Casts cached by an enclosing autocast would hide which weight they came from.
        torch.clear_autocast_cache()
        yield


def _restore(modes: list[tuple[nn.Module, bool]], buffers: list[tuple[nn.Module, str, Tensor, Tensor]]) -> None:
    for module, training in modes:
        module.training = training
    for module, name, buffer, content in buffers:
        module._buffers[name] = buffer
        # Only what changed is written: a write would invalidate a backward pass that is still pending.
        if not buffer.is_meta and not torch.equal(buffer, content):
            buffer.copy_(content)


# Multiply-adds, counted while a model runs.

_aten = torch.ops.aten

# Products torch's registry leaves out, as MACs.
_MORE_MACS: dict[Any, Callable[..., int]] = {
    _aten.mv: lambda matrix, vector: matrix.numel(),
    _aten.addmv: lambda addend, matrix, vector, **_: matrix.numel(),
    _aten.dot: lambda a, b: a.numel(),
    _aten.vdot: lambda a, b: a.numel(),
    _aten.addbmm: lambda addend, a, b, **_: a.numel() * b.shape[-1],
    # Bilinear: every weight meets every sample once. i1, i2, i3 are the two inputs and the weight between.
    _aten._trilinear: lambda i1, i2, i3, *_, **__: i2.numel() * math.prod(i1.shape[:-1]),
}
# The first argument is added, not multiplied.
_ADDING = {_aten.addmm, _aten.baddbmm, _aten.addmv, _aten.addbmm}
_CONVOLUTIONS = {_aten.convolution, _aten._convolution}
_POOLS = {_aten.avg_pool1d, _aten.avg_pool2d, _aten.avg_pool3d}
_POOLS |= {_aten._adaptive_avg_pool2d, _aten._adaptive_avg_pool3d}
# Copies that change layout or dtype only: the copy of a weight still is that weight.
_COPIES = {_aten.clone, _aten._to_copy, _aten._reshape_copy}


class MacCounter(TorchDispatchMode):
    """Attributes each product to the weight whose storage one of its operands shares.

    Identity of storage survives views (chunks of an attention projection, transposes) and exists on the meta device.
    Weak references keep a storage's address from being reused, but do not keep its memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.macs: dict[str, int] = {}  # by weight, in the order in which they were first touched
        self.other_macs = 0  # without a known weight
        self.pool_macs = 0  # input elements of average pools
        self.paused = 0  # parametrizations at work; above 0 nothing is counted
        self._owners: dict[StorageWeakRef, list[tuple[int, int, str]]] = {}

    def watch(self, tensor: Tensor, name: str) -> None:
        """Attribute the products of ``tensor`` to the weight ``name`` from here on."""
        start = int(tensor.storage_offset()) * tensor.element_size()
        span = (start, start + tensor.numel() * tensor.element_size(), name)
        self._owners.setdefault(StorageWeakRef(tensor.untyped_storage()), []).append(span)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs, operator = kwargs or {}, func._overloadpacket
        if operator not in flop_registry:
            # For inference tensors composite operators arrive whole: take them apart.
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        touched = [name for leaf in tree_leaves((args, kwargs)) if (name := self._owner(leaf))]
        for name in touched:
            self.macs.setdefault(name, 0)
        if operator in _COPIES and touched:
            self.watch(out, touched[0])
        elif not self.paused:
            self._count(operator, args, kwargs, out)
        return out

    def _count(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
        if operator in _POOLS or (operator is _aten.mean and _is_global_pool(*args, **kwargs)):
            self.pool_macs += args[0].numel()
        elif operator in flop_registry:
            self._book(operator, args, flop_registry[operator](*args, **kwargs, out_val=out) // 2)
        elif operator is _RECURRENCE:
            # Each of its two matrices meets every step of every sample once.
            steps = math.prod(args[0].shape[:2])
            for weight in args[1:3]:
                self._book(operator, [weight], steps * weight.numel())
        elif operator in _MORE_MACS:
            self._book(operator, args, _MORE_MACS[operator](*args, **kwargs))

    def _book(self, operator: Any, args: Sequence[Any], macs: int) -> None:
        # The likeliest weight first: it stands last in x @ w, also where x is learnt.
        factors = args[:2] if operator in _CONVOLUTIONS else args[1:] if operator in _ADDING else args
        name = next((name for x in reversed(factors) if (name := self._owner(x))), None)
        if name is None:
            self.other_macs += macs
        else:
            self.macs[name] += macs

    def _owner(self, leaf: Any) -> str | None:
        """The weight that ``leaf`` is a view of. Several weights may share one storage (flattened RNNs)."""
        if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided:
            return None
        spans = self._owners.get(StorageWeakRef(leaf.untyped_storage()), ())
        at = leaf.storage_offset() * leaf.element_size()
        return next((name for start, end, name in spans if start <= at < end), None)


def _is_global_pool(x: Tensor, dim: Any = None, *_: Any, **__: Any) -> bool:
    """Whether a mean is over all spatial dimensions, at least two, of a (batch of) image(s)."""
    if not isinstance(dim, list | tuple):
        return False
    first = x.dim() - len(dim)
    return len(dim) >= 2 and first in (1, 2) and sorted(d % x.dim() for d in dim) == list(range(first, x.dim()))


def profile(model: nn.Module, example: Any, *, tensors: Sequence[str] | None = None) -> Profile:
    """Count the weights and multiply-adds of every prunable tensor in one forward pass.

    One multiply-add is one MAC, the paper's FLOP; biases, normalisation and activations cost nothing; average pools are
    counted apart. The model is left exactly as it was.

    Args:
        model: any module, on any device. On the meta device nothing is computed.
        example: one tensor, a tuple of positional or a mapping of keyword arguments. Its batch is counted as given:
            pass a batch of one for the cost of one sample.
        tensors: names of the tensors to list instead of :func:`prunable_tensors`' choice.

    Returns:
        One row for each tensor (tied tensors: the first name) in the order of use of their modules; those the pass does
        not use come last with 0 MACs.

    Example:
        >>> import torch
        >>> costs = profile(torch.nn.Linear(4, 3), torch.zeros(1, 4))
        >>> costs.params, costs.macs, costs.other_params
        (12, 12, 3)
    """
    entries = prunable_tensors(model) if tensors is None else named_tensors(model, tensors)
    if not entries:
        raise ValueError(f"{type(model).__name__} has no prunable weights; name some with tensors=[...]")
    first = first_names(entries)
    rows = {entry.parameter: entry.name for entry in first}
    counter = MacCounter()
    for parameter, name in rows.items():
        counter.watch(parameter, name)
    found = ((parametrization(entry.module, entry.tensor), rows[entry.parameter]) for entry in entries)
    names: dict[nn.Module, str] = {transforms: name for transforms, name in found if transforms is not None}
    with ExitStack() as hooks, sandbox(model):
        _watch_parametrizations(model, names, counter, hooks)
        with counter:
            run(model, example)
    # Modules as they were first used, unused ones last; within a module as listed, because which of an LSTM cell's two
    # products comes first differs between devices.
    macs, touched = counter.macs, {name: at for at, name in enumerate(counter.macs)}
    use: dict[nn.Module, int] = {}
    for entry in first:
        at = touched.get(entry.name, len(touched))
        use[entry.module] = min(at, use.get(entry.module, at))
    used = sorted(first, key=lambda entry: use[entry.module])
    costs = tuple(TensorCost(t.name, tuple(t.parameter.shape), macs.get(t.name, 0)) for t in used)
    # A parametrization's own parameters, such as thresholds, are not part of the network.
    lists = (m for m in model.modules() if isinstance(m, parametrize.ParametrizationList))
    own = {p for entry in lists for transform in entry for p in transform.parameters()}
    other_params = sum(p.numel() for p in model.parameters() if p not in rows and p not in own)
    return Profile(costs, counter.other_macs, counter.pool_macs, other_params)


def run(model: nn.Module, example: Any) -> None:
    """One forward pass with an example as :func:`profile` takes it."""
    if isinstance(example, Mapping):
        model(**example)
    else:
        model(*(example if isinstance(example, tuple) else (example,)))


def _watch_parametrizations(
    model: nn.Module, names: Mapping[nn.Module, str], counter: MacCounter, hooks: ExitStack
) -> None:
    """Know what a parametrization returns by its tensor's name, and count none of its own work."""

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


class Uses(NamedTuple):
    """What `low_rank_uses` counts in one pass."""

    vectors: dict[str, int]  # that each low-rank layer multiplies
    other_macs: int  # multiply-adds of everything else


def low_rank_uses(model: nn.Module, example: Any, layers: Mapping[str, Any]) -> Uses:
    """Count the vectors that go through the factors ``up`` and ``down`` of each layer, or through their product, which
    it gives as its ``weight``. The model stays as it was.
    """
    counter = MacCounter()
    for name, layer in layers.items():
        for factor in ("up", "down"):
            counter.watch(getattr(layer, factor), f"{name}.{factor}")
    with ExitStack() as stack, sandbox(model):
        for name, layer in layers.items():
            stack.callback(setattr, layer, "__class__", type(layer))
            layer.__class__ = _watched(type(layer), name, counter)
        with counter:
            run(model, example)
    vectors, ours = {}, 0
    for name, layer in layers.items():
        whole, down = counter.macs.get(name, 0), counter.macs.get(f"{name}.down", 0)
        vectors[name] = whole // (layer.up.shape[0] * layer.down.shape[1]) + down // layer.down.numel()
        ours += whole + down + counter.macs.get(f"{name}.up", 0)
    return Uses(vectors, sum(counter.macs.values()) - ours + counter.other_macs + counter.pool_macs)


def _watched(kind: type[nn.Module], name: str, counter: MacCounter) -> type[nn.Module]:
    """The same class, but the product of the factors is watched by name and costs nothing to make."""
    plain: Any = cast(Any, kind).weight

    def weight(self: nn.Module) -> Tensor:
        counter.paused += 1
        try:
            found: Tensor = plain.fget(self)
        finally:
            counter.paused -= 1
        counter.watch(found, name)
        return found

    return type(kind.__name__, (kind,), {"weight": property(weight)})
