"""The training that tests of goals share."""

import torch


def train(model, sparsifier, x, steps, *, total=None, look=lambda: None):
    """So many steps of a training of `total` steps, by default of these; `look` is called after each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    sparsifier.attach(optimizer, total_steps=total or steps)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        look()
    return optimizer
