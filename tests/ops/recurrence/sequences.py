"""Small FastGRNN problems for the tests."""

import torch
from torch import Tensor

NAMES = ("x", "w", "u", "gate_bias", "update_bias", "zeta", "nu", "start")


def problem(
    *, samples: int, steps: int, features: int, hidden: int, start: bool = False, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Inputs and parameters as FastGRNN starts with them, all with a gradient."""
    made = torch.Generator().manual_seed(samples + 10 * steps + 100 * features + 1000 * hidden)

    def normal(*shape: int, std: float = 1.0) -> Tensor:
        return (std * torch.randn(*shape, generator=made, dtype=torch.float64)).to(dtype).requires_grad_()

    tensors = {
        "x": normal(samples, steps, features),
        "w": normal(hidden, features, std=0.3),
        "u": normal(hidden, hidden, std=0.3 if hidden < 20 else 0.1),
        "gate_bias": normal(hidden),
        "update_bias": normal(hidden),
        "zeta": torch.tensor([0.7], dtype=dtype, requires_grad=True),
        "nu": torch.tensor([0.1], dtype=dtype, requires_grad=True),
    }
    if start:
        tensors["start"] = normal(samples, hidden)
    return tensors


def as_double(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().double().requires_grad_() for name, tensor in tensors.items()}


def run(function, tensors, *, use="both", **curves):
    """Outputs, and the gradients of one fixed number made of the states, of the last one, or of both."""
    for tensor in tensors.values():
        tensor.grad = None
    given = dict(tensors)
    states, last = function(given.pop("x"), **given, **curves)
    weigh = torch.Generator().manual_seed(0)
    on_states = torch.randn(states.shape, generator=weigh, dtype=torch.float64).to(states.dtype)
    on_last = torch.randn(last.shape, generator=weigh, dtype=torch.float64).to(states.dtype)
    loss = {
        "both": lambda: (states * on_states).sum() + (last * on_last).sum(),
        "states": lambda: (states * on_states).sum(),
        "last": lambda: (last * on_last).sum(),
    }[use]()
    loss.backward()
    return {"states": states.detach(), "last": last.detach(), **{f"d{k}": v.grad for k, v in tensors.items()}}


def worst(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, float]:
    """The largest difference of each tensor, as a share of the largest value that it should have."""
    return {k: ((found[k].double() - wanted[k].double()).abs().max() / wanted[k].abs().max()).item() for k in wanted}


def worst_of_terms(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, float]:
    """As `worst`, for sums whose terms may cancel: the error is in proportion to them and not to what they leave.

    Gradients are sums over samples and steps, those of zeta and nu over units too, of terms of the size of one.
    """
    samples, steps, hidden = wanted["states"].shape
    terms = 0.05 * samples * steps
    floors = dict.fromkeys(wanted, terms) | {"dzeta": terms * hidden, "dnu": terms * hidden}
    return {
        name: float((found[name] - value).abs().max()) / max(float(value.abs().max()), floors[name])
        for name, value in wanted.items()
    }
