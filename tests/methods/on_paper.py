"""One layer with weights and gradients that are given, so that a mask can be worked out on paper."""

import torch
from torch import nn
from torch.optim import SGD

import softprune
from softprune.methods.base import Context


def layer(*weights):
    """Linear layers without bias, one for each row of weights; their outputs are added."""
    model = nn.Sequential(*(nn.Linear(len(row), 1, bias=False) for row in weights))
    with torch.no_grad():
        for module, row in zip(model, weights, strict=True):
            module.weight.copy_(torch.tensor([row]))
    return model


def begun(model, method, *, steps=10, optimizer=None, **total):
    sparsifier = softprune.sparsify(model, method, **total)
    optimizer = optimizer or SGD(model.parameters(), lr=1.0)
    sparsifier.attach(optimizer, total_steps=steps)
    return sparsifier, optimizer


def set_mask(sparsifier, number, row):
    target = sparsifier.targets[number]
    target.transform.mask.copy_(torch.tensor([row], dtype=torch.bool))


def mask(sparsifier, number=0):
    return sparsifier.targets[number].transform.mask.int().flatten().tolist()


def raw(sparsifier, number=0):
    return sparsifier.targets[number].raw.detach().flatten().tolist()


def push(sparsifier, optimizer, *gradients):
    """One step with these gradients for the raw weights."""
    for target, row in zip(sparsifier.targets, gradients, strict=True):
        target.raw.grad = torch.tensor([row])
    optimizer.step()


def context(sparsifier, optimizer, step, *, total_steps=10):
    return Context(step, total_steps, sparsifier.targets, [optimizer])
