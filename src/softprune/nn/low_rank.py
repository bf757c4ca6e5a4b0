"""Linear layers whose matrix is a product of two thin ones, with ranks that are fixed or learnt."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_Layer = TypeVar("_Layer", bound=nn.Module)
# Kernel, groups and padding of the convolutions that are a matrix.
_POINTWISE = (((1, 1), 1, (0, 0)), ((1, 1), 1, "valid"))


def stored_weights(in_features: int, out_features: int, *, rank: int) -> int:
    """Weights of a matrix as `fold` stores it: as factors, or whole where that is no more.

    >>> stored_weights(9, 80, rank=9), stored_weights(80, 80, rank=8)
    (720, 1280)
    """
    return min(rank * (in_features + out_features), in_features * out_features)


class LowRankLinear(nn.Module):
    """A linear layer with the matrix ``(up * m) down``, where m weighs the directions.

        y = W x + b,    W = sum_k m_k up_k down_k

    ``up`` is [out, rank], ``down`` [rank, in]. Without ``learned`` there is no m and the rank is what it is. With it m
    is an ordinary 1-D Parameter, ones at first: a method that makes entries of m zero removes directions, and `fold`
    makes the layer smaller.

    (m, up, down) and (m / c, c up, down) are the same layer, so decay on m alone shrinks m and lets up grow, until a
    threshold on m bites. Decay the factors as well, or call `normalise_` from time to time, if ranks fall too fast.

    The rank is the number of columns of ``up``, 1 to min(in, out); that maximum by default.

    >>> layer = LowRankLinear(8, 6, rank=2, learned=True)
    >>> layer(torch.zeros(3, 8)).shape, layer.weight.shape, layer.m.shape
    (torch.Size([3, 6]), torch.Size([6, 8]), torch.Size([2]))
    """

    # What m is the importance of, for those who prune units.
    importance_of: ClassVar[str] = "rank"

    def __init__(
        self, in_features: int, out_features: int, *, rank: int | None = None, bias: bool = True, learned: bool = False
    ) -> None:
        super().__init__()
        full = min(in_features, out_features)
        rank = full if rank is None else rank
        if not 1 <= rank <= full:
            raise ValueError(f"the rank of a {out_features} x {in_features} matrix is 1 to {full}; got {rank}")
        self.in_features = in_features
        self.out_features = out_features
        self.up = nn.Parameter(torch.empty(out_features, rank))
        self.down = nn.Parameter(torch.empty(rank, in_features))
        self.m = nn.Parameter(torch.ones(rank)) if learned else None
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    @property
    def rank(self) -> int:
        """How many directions are stored; a zero in m still counts."""
        return self.down.shape[0]

    @property
    def weight(self) -> Tensor:
        """The matrix [out, in], differentiable."""
        up = self.up if self.m is None else self.up * self.m
        return up @ self.down

    def stored_weights(self, rank: int) -> int:
        """Weights of the matrix at this rank, at least 1, as `fold` stores it."""
        return stored_weights(self.in_features, self.out_features, rank=max(1, rank))

    def stored_params(self, rank: int) -> int:
        """`stored_weights` and the bias."""
        return self.stored_weights(rank) + (0 if self.bias is None else self.out_features)

    def reset_parameters(self) -> None:
        """Factors whose product has the variance of `nn.Linear`'s weights."""
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
        nn.init.normal_(self.up, std=1 / math.sqrt(self.rank))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features)
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Inputs [..., in] to outputs [..., out]."""
        inner = F.linear(x, self.down)
        return F.linear(inner if self.m is None else inner * self.m, self.up, self.bias)

    @torch.no_grad()
    def normalise_(self) -> LowRankLinear:
        """Give every column of ``up`` and row of ``down``, but those of zeros, length one, and their lengths to m."""
        if self.m is None:
            raise ValueError("lengths go into m: make the layer with learned=True")
        up, down = self.up.norm(dim=0), self.down.norm(dim=1)
        up, down = (torch.where(length > 0, length, 1.0) for length in (up, down))
        self.up.div_(up)
        self.down.div_(down.unsqueeze(1))
        self.m.mul_(up * down)
        return self

    @torch.no_grad()
    def folded(self) -> nn.Linear | LowRankLinear:
        """A new layer without m and without the directions that m has made zero; of none left one zero is kept.

        It has factors, or one matrix if that takes no more weights.

        >>> layer = LowRankLinear(8, 8, learned=True)
        >>> _ = layer.m.data.copy_(torch.tensor([2.0, 0, 0, 0.5, 0, 0, 0, 0]))
        >>> layer.folded().rank, torch.allclose(layer.folded().weight, layer.weight)
        (2, True)
        """
        m = self.up.new_ones(self.rank) if self.m is None else self.m.detach()
        alive = m.nonzero().flatten() if m.any() else torch.zeros(1, dtype=torch.int64, device=m.device)
        inputs, outputs, rank = self.in_features, self.out_features, len(alive)
        made: dict[str, Any] = {"bias": self.bias is not None, "device": self.up.device, "dtype": self.up.dtype}
        if rank * (inputs + outputs) >= inputs * outputs:
            return _filled(nn.Linear(inputs, outputs, **made), self, weight=self.weight)
        thin = LowRankLinear(inputs, outputs, rank=rank, bias=self.bias is not None).to(self.up)
        return _filled(thin, self, up=(self.up * m)[:, alive], down=self.down[alive])

    @classmethod
    @torch.no_grad()
    def from_dense(
        cls, layer: nn.Linear | nn.Conv2d, *, rank: int | None = None, learned: bool = True
    ) -> LowRankLinear | LowRankConv2d:
        """The best layer of a rank for a trained one, by its singular values, which become m.

        A convolution must be 1 x 1 without groups. The ``rank`` largest directions are kept, all by default. Without
        ``learned`` each factor gets the roots of the singular values.

        >>> dense = nn.Linear(5, 4)
        >>> thin = LowRankLinear.from_dense(dense)
        >>> torch.allclose(thin.weight, dense.weight, atol=1e-5), bool((thin.m[:-1] >= thin.m[1:]).all())
        (True, True)
        """
        if not isinstance(layer, nn.Linear | nn.Conv2d):
            raise ValueError(f"a Linear or a 1 x 1 Conv2d can be split; got a {type(layer).__name__}")
        if isinstance(layer, nn.Conv2d) and (layer.kernel_size, layer.groups, layer.padding) not in _POINTWISE:
            raise ValueError(f"only a 1 x 1 convolution without groups and padding is a matrix; got {layer}")
        weight = layer.weight.flatten(1)
        outputs, inputs = weight.shape
        thin = LowRankLinear(inputs, outputs, rank=rank, bias=layer.bias is not None, learned=learned).to(weight)
        left, values, right = torch.linalg.svd(weight.double(), full_matrices=False)
        left, values, right = left[:, : thin.rank], values[: thin.rank], right[: thin.rank]
        if thin.m is None:
            roots = values.sqrt()
            left, right = left * roots, right * roots.unsqueeze(1)
        else:
            thin.m.copy_(values)
        thin.up.copy_(left)
        thin.down.copy_(right)
        if thin.bias is not None and layer.bias is not None:
            thin.bias.copy_(layer.bias)
        return LowRankConv2d(thin, stride=layer.stride) if isinstance(layer, nn.Conv2d) else thin

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, rank={self.rank}, "
            f"bias={self.bias is not None}, learned={self.m is not None}"
        )


class LowRankConv2d(nn.Module):
    """A 1 x 1 convolution with a matrix of low rank: `linear` on the channels of every pixel that the stride takes.

    >>> conv = LowRankConv2d(LowRankLinear(8, 6, rank=2))
    >>> conv(torch.zeros(3, 8, 5, 5)).shape
    torch.Size([3, 6, 5, 5])
    """

    def __init__(self, linear: LowRankLinear, *, stride: tuple[int, ...] = (1, 1)) -> None:
        super().__init__()
        self.linear = linear
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Images [n, in, height, width] to [n, out, height, width]."""
        one = (..., None, None)
        inner = F.conv2d(x, self.linear.down[one], stride=self.stride)
        if self.linear.m is not None:
            inner = inner * self.linear.m[one]
        return F.conv2d(inner, self.linear.up[one], self.linear.bias)

    @torch.no_grad()
    def folded(self) -> nn.Conv2d | LowRankConv2d:
        """As `LowRankLinear.folded`: with factors, or one convolution if that takes no more weights."""
        small = self.linear.folded()
        if isinstance(small, LowRankLinear):
            return LowRankConv2d(small, stride=self.stride).train(self.training)
        made: dict[str, Any] = {"bias": small.bias is not None, "device": small.weight.device, "stride": self.stride}
        conv = nn.Conv2d(small.in_features, small.out_features, 1, dtype=small.weight.dtype, **made)
        return _filled(conv, small, weight=small.weight[..., None, None]).train(self.training)


def _filled(target: _Layer, like: nn.Linear | LowRankLinear, **values: Tensor) -> _Layer:
    """A layer with these tensors, and with the bias and the mode of another."""
    for name, value in values.items():
        getattr(target, name).copy_(value)
    if like.bias is not None:
        target.bias.copy_(like.bias)  # type: ignore[union-attr,operator]
    return target.train(like.training)


@torch.no_grad()
def fold(model: nn.Module) -> nn.Module:
    """A copy of a model with every layer of low rank folded; nothing else changes.

    `bake` does so by itself for layers whose ranks were learnt. A layer that a Sparsifier still manages is refused.

    >>> model = nn.Sequential(LowRankLinear(4, 4), nn.ReLU())
    >>> fold(model)[0]
    Linear(in_features=4, out_features=4, bias=True)
    """
    for path, module in model.named_modules():
        if isinstance(module, LowRankLinear) and "parametrizations" in module._modules:
            raise ValueError(f"{path or 'the model'} is still managed: bake the model first, then fold it")
    model = copy.deepcopy(model)
    if isinstance(model, LowRankLinear | LowRankConv2d):
        return model.folded()
    made: dict[nn.Module, nn.Module] = {}  # a layer that is used at two places stays one
    for module in list(model.modules()):
        for name, child in module._modules.items():  # named_children leaves out repeated ones
            if isinstance(child, LowRankLinear | LowRankConv2d):
                if child not in made:
                    made[child] = child.folded()
                module._modules[name] = made[child]
    return model


def take_ranks_(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Give the linear layers of a network the ranks that a folded network's state dict has: factors, or one matrix.

    Only layers that are stored in the other form, or with another rank, are replaced. Weights are not loaded.

    >>> model = nn.Sequential(LowRankLinear(8, 8, learned=True))
    >>> take_ranks_(model, LowRankLinear(8, 8, rank=2).state_dict(prefix="0."))[0].rank
    2
    """
    for path, layer in list(model.named_modules()):
        if not path or not isinstance(layer, nn.Linear | LowRankLinear):
            continue
        parent, name = model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
        down = weights.get(f"{path}.down")
        sizes, bias = (layer.in_features, layer.out_features), layer.bias is not None
        if down is not None and f"{path}.m" not in weights and 1 <= down.shape[0] <= min(sizes):
            if isinstance(layer, nn.Linear) or layer.m is not None or layer.rank != down.shape[0]:
                setattr(parent, name, LowRankLinear(*sizes, rank=down.shape[0], bias=bias))
        elif f"{path}.weight" in weights and isinstance(layer, LowRankLinear) and not isinstance(parent, LowRankConv2d):
            setattr(parent, name, nn.Linear(*sizes, bias=bias))
    return model
