"""Runs on Fashion-MNIST that can be compared: two networks, and what each method adds to a common configuration.

A CNN (261,392 weights) learns from 10,000 images and a small ResNet (268,048) from 20,000, 12 epochs each, with the
same steps, order of data and optimizer for every method. Scripts that are given one folder of runs share them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cells
from cells import read_result, train_into
from torch import nn

from softprune.nn.resnet import resnet20

RECIPE = "fashion-mnist/dense"
RUNS = "runs/fashion"
GOAL = "str goal"
DENSE = "dense"
# What every run has in common: fast on a CPU, and one evaluation, after the last step. Gradients are clipped as by the
# authors of ST-3, without which its weights on the ResNet grow without bound.
COMMON = ("channels_last=true", "evaluate_every=12", "checkpoint.keep=1", "threads=1", "clip_norm=3")
NETWORKS = {
    "cnn": ("model=small_cnn", "data.subset=10000", "epochs=12"),
    "resnet": ("model=fashion:small_resnet", "data.subset=20000", "epochs=12"),
    # Where budgets are learnt cheaply: half as wide, or from a fifth of the images.
    "narrow": ("model=fashion:narrow_cnn", "data.subset=10000", "epochs=12"),
    "fifth": ("model=small_cnn", "data.subset=2000", "epochs=12"),
}
# Level 0 is the dense network.
METHODS: dict[str, list[str]] = {
    DENSE: ["method=null"],
    GOAL: ["method=str", "goal={level}"],
    "str paper, bisected": ["method={{name: str, s_init: propose}}", "optimizer.threshold_decay=propose"],
    "str goal, global": ["method={{name: str, granularity: global}}", "goal={level}"],
    "str goal, filter": ["method={{name: str, granularity: filter}}", "goal={level}"],
    "str goal, weight": ["method={{name: str, granularity: weight}}", "goal={level}"],
    # The same multiply-adds as the run of STR with a goal of this level and seed, or half of them.
    "str flops goal": ["method=str", "goal={{flops: {macs}}}"],
    "str flops goal, half": ["method=str", "goal={{flops: {half}}}"],
    "gmp global, flops": ["method=gmp", "goal={{flops: {macs}}}"],
    "gmp erk, flops": ["method=gmp", "goal={{flops: {macs}, budget: erk}}"],
    # One total for all tensors.
    "autosparse": ["method=autosparse", "goal={level}"],
    "vd": ["method=vd", "goal={level}"],
    "st3": ["method=st3", "goal={level}"],
    "st3 sigma": ["method={{name: st3, sigma: true}}", "goal={level}"],
    "slats": ["method=slats", "goal={level}"],
    "feather": ["method=feather", "goal={level}"],
    "gmp global": ["method=gmp", "goal={level}"],
    "dpf global": ["method=dpf", "goal={level}"],
    "imp global": ["method=imp", "goal={level}"],
    "acdc global": ["method=acdc", "goal={level}"],
    "snip global": ["method=snip", "goal={level}"],
    "dsr": ["method=dsr", "goal={level}"],
    # A budget that the method keeps, or begins with.
    "gmp uniform": ["method=gmp", "goal={{sparsity: {level}, budget: uniform}}"],
    "gmp erk": ["method=gmp", "goal={{sparsity: {level}, budget: erk}}"],
    "dnw uniform": ["method=dnw", "goal={{sparsity: {level}, budget: uniform}}"],
    "dnw erk": ["method=dnw", "goal={{sparsity: {level}, budget: erk}}"],
    "snfs uniform": ["method=snfs", "goal={{sparsity: {level}, budget: uniform}}"],
    "snfs erk": ["method=snfs", "goal={{sparsity: {level}, budget: erk}}"],
    "snfs erk, rate 0.1": ["method={{name: snfs, rate: 0.1}}", "goal={{sparsity: {level}, budget: erk}}"],
    "rigl uniform": ["method=rigl", "goal={{sparsity: {level}, budget: uniform}}"],
    "rigl erk": ["method=rigl", "goal={{sparsity: {level}, budget: erk}}"],
    "set erk": ["method=set", "goal={{sparsity: {level}, budget: erk}}"],
    "static uniform": ["method=static", "goal={{sparsity: {level}, budget: uniform}}"],
    "static erk": ["method=static", "goal={{sparsity: {level}, budget: erk}}"],
    # What STR learnt, on all of it or cheaply, at this level and seed.
    "gmp like str": ["method=gmp", "goal={{budget: {str}}}"],
    "gmp like fifth": ["method=gmp", "goal={{budget: {fifth}}}"],
    "gmp like narrow": ["method=gmp", "goal={{sparsity: {level}, budget: {narrow}}}"],
    "dnw like str": ["method=dnw", "goal={{budget: {str}}}"],
    "dnw like fifth": ["method=dnw", "goal={{budget: {fifth}}}"],
    "dnw like narrow": ["method=dnw", "goal={{sparsity: {level}, budget: {narrow}}}"],
}
_LEARNT_ON = {"str": "cnn", "fifth": "fifth", "narrow": "narrow"}


@dataclass(frozen=True)
class Cell:
    """One run."""

    network: str
    method: str
    level: float
    seed: int

    @property
    def name(self) -> str:
        words = [self.network, self.method, f"{100 * self.level:g}", f"seed{self.seed}"]
        return "-".join(words).replace(", ", "-").replace(" ", "-")

    @property
    def rests_on(self) -> Cell | None:
        """The run whose multiply-adds or budget this one gets."""
        _, found, where = self.method.partition(" like ")
        if found:
            return replace(self, network=_LEARNT_ON[where], method=GOAL)
        return replace(self, method=GOAL) if "flops" in self.method else None

    def overrides(self, runs: Path) -> list[str]:
        words: dict[str, Any] = {"level": self.level}
        if self.rests_on is not None:
            folder = runs / self.rests_on.name
            macs = read_result(folder)["last"]["macs"]
            words |= {"macs": round(macs), "half": round(macs / 2), **dict.fromkeys(_LEARNT_ON, folder)}
        method = [text.format(**words) for text in METHODS[self.method]]
        return [*NETWORKS[self.network], *COMMON, *method, f"seed={self.seed}"]


def work(
    options: argparse.Namespace, todo: list[Cell], report: Callable[[argparse.Namespace, list[Cell], list[Cell]], None]
) -> None:
    """Do what a script was asked for: make one cell, print the plan, or make all cells and tell of those that are done.

    Args:
        options: of the script.
        todo: its cells.
        report: is given the options, all cells and the finished ones.
    """
    cells.work(
        options,
        todo,
        train=lambda c: train_into(options.runs / c.name, RECIPE, [*c.overrides(options.runs), *options.change]),
        minutes=lambda c: 1.0,
        report=report,
    )


def small_resnet() -> nn.Module:
    """ResNet20 for 28x28 images in one channel, which its stem halves: 268,048 weights, 8,467,136 multiply-adds."""
    model = resnet20()
    model.conv1 = nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight)
    return model


def narrow_cnn() -> nn.Module:
    """`small_cnn` with half of the channels, and the same names."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(1, 8), nn.MaxPool2d(2), *block(8, 16), nn.MaxPool2d(2), *block(16, 32), *block(32, 32),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
