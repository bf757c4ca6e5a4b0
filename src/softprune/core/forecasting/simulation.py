"""The path of a threshold under an optimizer whose recursion we do not know: run it and look.

The optimizer's own class takes the steps, on one float64 number with a loss gradient of zero. A torch step
costs tens of microseconds, so long runs are taken in longer strides.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

LONGEST = 20_000  # steps taken at most: about two seconds


def stride(total_steps: int) -> int:
    """Return how many steps of the run one simulated step stands for."""
    return math.ceil(total_steps / LONGEST)


def simulate(
    kind: type[Optimizer],
    s_init: float,
    *,
    settings: Mapping[str, Any],
    lrs: Sequence[float],
    momenta: Sequence[float],
    decays: Sequence[float],
    ndim: int = 1,
) -> list[float]:
    """Return s after 0, 1, ..., N steps of the optimizer class with no loss gradient.

    A stride of n steps is one step with the sum of their learning rates; the values between are interpolated.

    Args:
        kind: the optimizer class.
        s_init: s before the first step.
        settings: the hyper-parameters of its param group.
        lrs: learning rate of each step.
        momenta: momentum (or beta1) of each step.
        decays: weight decay of each step.
        ndim: rank of the real tensor; some optimizers treat vectors and matrices differently.

    Raises:
        TypeError: the class cannot be built or stepped without its surroundings.
    """
    s = torch.full((1,) * ndim, s_init, dtype=torch.float64, requires_grad=True)
    s.grad = torch.zeros_like(s)
    path = [s_init]
    width = stride(len(lrs))
    try:
        optimizer = _build(kind, s, settings)
        group = optimizer.param_groups[0]
        for start in range(0, len(lrs), width):
            block = lrs[start : start + width]
            group["lr"] = sum(block)
            if "weight_decay" in group:
                group["weight_decay"] = decays[start]
            if "betas" in group:
                group["betas"] = (momenta[start], *group["betas"][1:])
            elif "momentum" in group:
                group["momentum"] = momenta[start]
            s.grad.zero_()  # some optimizers add the decay to the gradient in place
            optimizer.step()
            before, after = path[-1], s.item()
            path.extend(before + (after - before) * (i + 1) / len(block) for i in range(len(block)))
    except Exception as error:
        raise TypeError(
            f"{kind.__name__} cannot be tried out on a single number ({error}); if it wraps an optimizer "
            "give that one, otherwise put s into a torch.optim.SGD of its own"
        ) from error
    return path


def _build(kind: type[Optimizer], s: torch.Tensor, settings: Mapping[str, Any]) -> Optimizer:
    # One number on the CPU: the paths for many tensors, graphs and graphics cards would refuse it or be slow.
    plain = {"foreach": False, "fused": False, "capturable": False}
    group = {
        name: plain.get(name, value.item() if isinstance(value, torch.Tensor) else value)
        for name, value in settings.items()
    }
    accepted = inspect.signature(kind).parameters
    # Some classes insist on arguments (lr) although the group carries them.
    arguments: Any = {name: value for name, value in group.items() if name in accepted and name != "params"}
    return kind([{**group, "params": [s]}], **arguments)
