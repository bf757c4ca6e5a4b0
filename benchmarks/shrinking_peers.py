"""Claim: `softprune.shrink` goes at least as far as Torch-Pruning's dependency groups, and is exact where they are not.

Networks with random weights in which 50 % of the channels of every batch norm are dead, the same ones in layers of one
width: their scale and shift are zero ("zero"), or only their scale is, so that they hold a constant ("constant").

    softprune      softprune.shrink
    Torch-Pruning  for every dead channel the group that its DependencyGraph finds; removed if all norms in the group
                   have it dead and the graph allows it. Constants would be lost, so those it cannot remove

Printed: parameters that are left, and the largest difference of the outputs, relative to the largest output. Run, with
torch-pruning installed:

    python benchmarks/shrinking_peers.py --out benchmarks/results/shrinking_peers
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch_pruning as tp
from cells import markdown, write
from shrinking import measured_norms
from torch import Tensor, nn

import softprune
from softprune.nn.catalog import NETWORKS, build

LEVEL = 0.5
KINDS = ("zero", "constant")


class Branches(nn.Module):
    """A concatenation, a grouped convolution that reads it, and a product with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.right = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.both = nn.Sequential(nn.Conv2d(48, 24, 3, padding=1, groups=4, bias=False), nn.BatchNorm2d(24), nn.ReLU())
        self.gate, self.head = nn.Linear(24, 24), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.both(torch.cat([self.left(x), self.right(x)], 1))
        x = x * torch.sigmoid(self.gate(x.mean((2, 3))))[:, :, None, None]
        return self.head(x.mean((2, 3)))


MADE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{name: (lambda name=name: build(name), NETWORKS[name].example_shape) for name in ("resnet18", "mobilenetv1")},
    "resnet20, padded shortcuts": (lambda: build("resnet20"), NETWORKS["resnet20"].example_shape),
    "concatenation and groups": (Branches, (1, 3, 16, 16)),
}


@torch.no_grad()
def network(name: str, kind: str) -> tuple[nn.Module, Tensor]:
    """A network with dead channels, and images for it."""
    torch.manual_seed(0)
    build_it, shape = MADE[name]
    model, x = build_it(), torch.randn(4, *shape[1:])
    for norm in measured_norms(model, lambda: x):
        dead = torch.randperm(norm.num_features, generator=torch.Generator().manual_seed(norm.num_features))
        dead = dead[: round(LEVEL * norm.num_features)]
        norm.weight[dead] = 0.0
        if kind == "zero":
            norm.bias[dead] = 0.0
    return model.eval(), x


@torch.enable_grad()  # its graph is that of autograd
def with_groups(model: nn.Module, x: Tensor) -> nn.Module:
    """The network as Torch-Pruning's groups leave it."""
    model = copy.deepcopy(model)
    graph = tp.DependencyGraph().build_dependency(model, example_inputs=x[:1])
    for norm in [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]:
        for channel in reversed(range(norm.num_features)):
            # A group may have taken more of this norm than was asked for.
            if channel >= norm.num_features or not _zero(norm, [channel]):
                continue
            group = graph.get_pruning_group(norm, tp.prune_batchnorm_out_channels, idxs=[channel])
            if all(_zero(d.target.module, idxs) for d, idxs in group) and graph.check_pruning_group(group):
                group.prune()
    return model


@torch.no_grad()
def _zero(layer: Any, channels: list[int]) -> bool:
    """Whether a norm has these dead; other layers have no say."""
    if not isinstance(layer, nn.BatchNorm2d):
        return True
    return not bool(layer.weight[channels].any() or layer.bias[channels].any())


@torch.no_grad()
def told(made: Callable[[], nn.Module], model: nn.Module, x: Tensor) -> dict[str, Any]:
    wanted = model(x)
    try:
        small = made()
        difference = float((small(x) - wanted).abs().max() / wanted.abs().max())
    except Exception as error:  # whatever a peer raises is its result
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"}
    return {"parameters": sum(p.numel() for p in small.parameters()), "difference": difference}


def _words(found: dict[str, Any]) -> str:
    if "error" in found:
        return str(found["error"])
    return f"{found['parameters']:,}, {found['difference']:.0e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    parser.set_defaults(change=[])
    options = parser.parse_args()
    rows, lines = [], []
    for name in MADE:
        for kind in KINDS:
            model, x = network(name, kind)
            found = {
                "softprune": told(lambda model=model, x=x: softprune.shrink(model, x).model, model, x),
                "Torch-Pruning": told(lambda model=model, x=x: with_groups(model, x), model, x),
            }
            before = sum(p.numel() for p in model.parameters())
            rows.append({"network": name, "dead": kind, "before": before, **found})
            lines.append([name, kind, f"{before:,}", *map(_words, found.values())])
            print(*lines[-1], sep=" | ", flush=True)
    head = ["network", "dead channels", "parameters", "softprune: left, difference", f"Torch-Pruning {tp.__version__}"]
    write(options, markdown(head, lines), {"torch_pruning": tp.__version__, "rows": rows})


if __name__ == "__main__":
    main()
