"""What managed models are compared with: the paper's formula written out, on the plain module."""

import torch
from torch import nn
from torch.func import functional_call


def shrunk(w, alpha):
    """Equation (1): sign(w) * relu(|w| - alpha)."""
    return torch.sign(w) * torch.relu(torch.abs(w) - alpha)


def tensors(output):
    """All floating point tensors of a nested output."""
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() else []
    return [t for item in output if item is not None for t in tensors(item)]


def loss_of(output):
    return sum((t * torch.linspace(-1, 2, t.numel(), dtype=t.dtype).view_as(t)).square().sum() for t in tensors(output))


def reference_output(plain, alphas, inputs, raw=None):
    """The output of the plain module with the named weights replaced by their shrunk values."""
    weights = dict(plain.named_parameters()) if raw is None else raw
    used = {name: shrunk(w, alphas[name]) if name in alphas else w for name, w in weights.items()}
    return functional_call(plain, used, inputs)


def fingerprint(model):
    """Everything of a model that a refused call must leave as it was."""
    classes = [(path, type(module)) for path, module in model.named_modules()]
    hooks = [(len(m._forward_pre_hooks), len(m._forward_hooks)) for m in model.modules()]
    state = {key: (id(value), value) for key, value in _tensors_of(model)}
    values = {
        key: None if nn.parameter.is_lazy(v) or v.is_meta else v.detach().clone() for key, (_, v) in state.items()
    }
    return classes, hooks, {key: address for key, (address, _) in state.items()}, values


def same_fingerprint(a, b):
    if a[:3] != b[:3] or list(a[3]) != list(b[3]):
        return False
    for key, before in a[3].items():
        after = b[3][key]
        if (before is None) != (after is None):
            return False
        if before is not None and not torch.equal(_plain(before), _plain(after)):
            return False
    return True


def _plain(t):
    t = t.to_dense() if t.layout is not torch.strided else t
    t = torch.view_as_real(t) if t.is_complex() else t
    return t.nan_to_num(nan=12345.0) if t.is_floating_point() else t


def _tensors_of(model):
    for path, module in model.named_modules():
        for name, t in [*module._parameters.items(), *module._buffers.items()]:
            if t is not None:
                yield f"{path}.{name}", t
