"""Following: a walk from the inputs of a network to its outputs."""

from __future__ import annotations

import operator

import torch
from torch import Tensor, nn
from torch.fx import Node

from softprune.channels import elementwise, layers, layout
from softprune.channels.network import Network, network
from softprune.channels.program import Example, exported
from softprune.channels.walk import Walk, begin

RULES = {**elementwise.RULES, **layout.RULES, **layers.RULES}


@torch.no_grad()
def follow(model: nn.Module, example: Example) -> Network:
    """Where every channel of a network comes from and who reads it.

    Raises:
        ValueError: if torch.export cannot follow the module.
    """
    program = exported(model, example)
    walk = begin(model, program)
    for node in program.graph.nodes:
        if node.op == "output":
            for one in node.all_input_nodes:
                if one in walk.flows:
                    walk.channels.pin(walk.flows[one].channels, "an output of the network")
        elif node.op == "call_function":
            _step(walk, node)
    return network(walk)


def _step(walk: Walk, node: Node) -> None:
    made = node.meta.get("val")
    if node.target is operator.getitem:
        # The first result of a norm; of other operations with several results nothing is followed.
        source = node.args[0]
        if node.args[1] == 0 and source in walk.flows:
            walk.flows[node] = walk.flows[source]  # type: ignore[index]
        return
    if not isinstance(made, Tensor | tuple | list):
        return  # a size, or a check of sizes
    rule = RULES.get(str(node.target))
    if rule is None:
        walk.stay(node)
        return
    flow = rule(walk, node)
    if flow is not None:
        walk.flows[node] = flow
