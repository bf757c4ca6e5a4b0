"""Count multiply-adds while a model runs, and say which weight they belong to."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from softprune.ops.recurrence.fused import OPERATOR as _RECURRENCE

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

    Identity of storage survives views (chunks of an attention projection, transposes) and exists on
    the meta device. Weak references are held: they keep a storage's address from being reused, but
    not its memory.

    Attributes:
        macs: weight name -> multiply-adds, in the order in which the weights were first touched.
        other_macs: multiply-adds without a known weight.
        pool_macs: input elements of average pools.
        paused: while above 0 nothing is counted (the number of parametrizations at work).
    """

    def __init__(self) -> None:
        super().__init__()
        self.macs: dict[str, int] = {}
        self.other_macs = 0
        self.pool_macs = 0
        self.paused = 0
        self._owners: dict[StorageWeakRef, list[tuple[int, int, str]]] = {}

    def watch(self, tensor: Tensor, name: str) -> None:
        """From here on ``tensor`` is known as the weight ``name``."""
        start = int(tensor.storage_offset()) * tensor.element_size()
        span = (start, start + tensor.numel() * tensor.element_size(), name)
        self._owners.setdefault(StorageWeakRef(tensor.untyped_storage()), []).append(span)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._overloadpacket not in flop_registry:
            # For inference tensors composite operators arrive whole: take them apart.
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        touched = [name for leaf in tree_leaves((args, kwargs)) if (name := self._owner(leaf))]
        for name in touched:
            self.macs.setdefault(name, 0)
        operator = func._overloadpacket
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
        name = next((name for x in _operands(operator, args) if (name := self._owner(x))), None)
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


def _operands(operator: Any, args: Sequence[Any]) -> Iterator[Any]:
    """The factors of a product, the likeliest weight first.

    A weight stands last (x @ w); when a learnt input meets a weight, the latter pays.
    """
    if operator in _CONVOLUTIONS:
        return iter((args[1], args[0]))
    return reversed(args[1:] if operator in _ADDING else args)


def _is_global_pool(x: Tensor, dim: Any = None, *_: Any, **__: Any) -> bool:
    """A mean over all spatial dimensions, at least two, of a (batch of) image(s)."""
    if not isinstance(dim, list | tuple):
        return False
    first = x.dim() - len(dim)
    return len(dim) >= 2 and first in (1, 2) and sorted(d % x.dim() for d in dim) == list(range(first, x.dim()))
