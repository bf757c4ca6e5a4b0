"""Run a model once for measurement and leave it exactly as it was."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def sandbox(model: nn.Module) -> Iterator[None]:
    """Within: evaluation mode, no gradients, and only paths that are made of plain products.

    Fused kernels (attention, recurrence) hide their products from a dispatch mode, so they are
    switched off. Training flags, buffers, random state and switches are restored, also after an error.
    """
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=sorted(devices, key=str)))
        backends: tuple[Any, ...] = (torch.backends.mkldnn, torch.backends.cudnn)
        for backend in backends:
            # Not their flags(): it also sets, and warns about, options that are none of our business.
            stack.callback(setattr, backend, "enabled", backend.enabled)
            backend.enabled = False
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        if "torch._dynamo" in sys.modules:  # importing it takes seconds, and without it nothing is compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch.no_grad())
        stack.callback(_restore_modes, [(m, m.training) for m in model.modules()])
        stack.callback(_restore_buffers, _saved_buffers(model))
        model.eval()
        # Casts cached by an enclosing autocast would hide which weight they came from.
        torch.clear_autocast_cache()
        yield


def _restore_modes(modes: list[tuple[nn.Module, bool]]) -> None:
    for module, training in modes:
        module.training = training


def _saved_buffers(model: nn.Module) -> list[tuple[nn.Module, str, Tensor, Tensor]]:
    return [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]


def _restore_buffers(saved: list[tuple[nn.Module, str, Tensor, Tensor]]) -> None:
    for module, name, buffer, content in saved:
        module._buffers[name] = buffer
        # Only what changed is written: a write would invalidate a backward pass that is still pending.
        if not buffer.is_meta and not torch.equal(buffer, content):
            buffer.copy_(content)
