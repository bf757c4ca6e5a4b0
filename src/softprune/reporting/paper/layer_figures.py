"""Figures 6 to 9: sparsity and FLOPs of every layer, from the published budgets."""

from __future__ import annotations

from softprune.budget.budget import Budget
from softprune.budget.costs import Profile
from softprune.budget.published import published
from softprune.reporting.chart import Axis, Chart, Series
from softprune.reporting.paper.recount import network_profile

RESNET50 = {
    "STR": "str-90.23",
    "Uniform": "uniform-90",
    "ERK": "erk-90",
    "SNFS": "snfs-90",
    "VD": "vd-90",
    "GS": "gs-89.54",
}
MOBILENETV1 = {"STR": "str-89.01", "GMP": "gmp-89.03"}
_NETWORKS = {"resnet50": ("ResNet50", RESNET50), "mobilenetv1": ("MobileNetV1", MOBILENETV1)}
# Figures of the paper: network -> (sparsity, FLOPs).
_NUMBERS = {"resnet50": (6, 7), "mobilenetv1": (8, 9)}


def layer_sparsity(network: str, others: dict[str, Budget] | None = None) -> Chart:
    """The sparsity of every layer in the 90 % budgets of one network.

    Args:
        network: "resnet50" or "mobilenetv1".
        others: budgets of the same network to draw with them, by their name in the legend.

    Example:
        >>> layer_sparsity("mobilenetv1").series[0].y[0]
        0.691
    """
    shown, number = _NETWORKS[network][0], _NUMBERS[network][0]
    return Chart(
        name=f"figure_{number:02}_layer_sparsity",
        title=f"Figure {number}. Sparsity of every layer of {shown} at 90 %",
        caption=f"Printed layer by layer in table {7 if network == 'resnet50' else 8}; nothing is recomputed."
        + (" dw: depthwise." if network == "mobilenetv1" else ""),
        x=Axis("layer", categories=layer_names(network_profile(network))),
        y=Axis("sparsity", percent=True, low=0.0, high=1.0),
        series=tuple(
            # Two decimals of a percent are printed; what binary fractions add is taken away again.
            _series(name, budget, [round(budget.sparsity(t), 6) for t in budget])
            for name, budget in _budgets(network, others).items()
        ),
    )


def layer_macs(network: str, others: dict[str, Budget] | None = None) -> Chart:
    """The multiply-adds left in every layer in the 90 % budgets of one network; arguments as above."""
    shown, number = _NETWORKS[network][0], _NUMBERS[network][1]
    profile = network_profile(network)
    return Chart(
        name=f"figure_{number:02}_layer_flops",
        title=f"Figure {number}. FLOPs of every layer of {shown} at 90 %",
        caption="Ours: the density of each layer times its multiply-adds on an image of 224 x 224."
        + (" dw: depthwise." if network == "mobilenetv1" else ""),
        x=Axis("layer", categories=layer_names(profile)),
        y=Axis("million multiply-adds left", low=0.0),
        series=tuple(
            _series(name, budget, [round(budget[t.name] * t.macs) / 1e6 for t in profile])
            for name, budget in _budgets(network, others).items()
        ),
    )


def layer_names(profile: Profile) -> tuple[str, ...]:
    """Names for an axis, as in the paper: attribute paths for ResNet50, numbers for MobileNetV1."""
    if not profile.names[0].startswith("model."):
        return tuple(name.removesuffix(".weight") for name in profile.names)
    kinds = ["fc" if t.name == profile.head else "dw" if t.shape[1] == 1 else "" for t in profile]
    return tuple(f"{number} {kind}".rstrip() for number, kind in enumerate(kinds, 1))


def _budgets(network: str, others: dict[str, Budget] | None) -> dict[str, Budget]:
    own = {name: published(f"{network}/{short}") for name, short in _NETWORKS[network][1].items()}
    return own | (others or {})


def _series(name: str, budget: Budget, values: list[float]) -> Series:
    total = f"{name}: {budget.overall:.2%} of all weights are zero, {budget.macs() / 1e6:.1f}M multiply-adds"
    places = tuple(float(i) for i in range(len(values)))
    return Series(name, places, tuple(values), notes=(total,) * len(values))
