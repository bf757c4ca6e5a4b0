"""From a plain module to the program that torch.export makes of it, with a batch of any size."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import Node

from softprune.channels.multihead import batch_in_front

Example = Tensor | Sequence[Tensor]


def exported(module: nn.Module, example: Example) -> ExportedProgram:
    """The operations of the module in eval mode, without in-place operations.

    Args:
        module: plain, with zeros in its weights or without; left as it was.
        example: one input or several; sizes other than the batch hold for good.

    Raises:
        TypeError: if an input is no tensor.
        ValueError: if an input has no batch or is not float32, or torch.export cannot follow the module.
    """
    inputs = batch_of_two(example)
    with _evaluating(module) as ready:
        try:
            with batch_in_front(ready):
                program = torch.export.export(ready, inputs, dynamic_shapes=_dynamic(ready, inputs), strict=False)
        except Exception as error:  # torch.export fails with whatever the module's code stumbles over
            raise ValueError(
                f"torch.export cannot follow {type(module).__name__} with a batch of any size; "
                "its forward must not decide by values, or turn the batch size into a number "
                f"(len(x) does, x.shape[0] does not): {error}"
            ) from error
        # An empty table keeps composite operations whole and still removes every in-place operation.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch warns of its own code
            return program.run_decompositions({})


def batch_of_two(example: Example) -> tuple[Tensor, ...]:
    """The example on the CPU with a batch of at least two: torch.export takes a batch of one for a fixed size."""
    inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    if not inputs:
        raise ValueError("the example is empty: give one tensor per input of forward")
    ready = []
    for position, x in enumerate(inputs):
        if not isinstance(x, Tensor):
            raise TypeError(f"input {position} of the example must be a tensor, got {type(x).__name__}")
        if x.dtype != torch.float32 or x.ndim == 0 or x.shape[0] == 0:
            raise ValueError(
                f"input {position} of the example must be float32 with a batch of at least 1 in front, "
                f"got {x.dtype} of shape {tuple(x.shape)}"
            )
        x = x.detach().cpu()
        ready.append(torch.cat([x, x]) if x.shape[0] == 1 else x)
    if len({x.shape[0] for x in ready}) > 1:
        raise ValueError(f"all inputs need the same batch size, got {[x.shape[0] for x in inputs]}")
    return tuple(ready)


def _dynamic(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[object, ...]:
    batch = Dim("batch", min=1)
    shapes: list[object] = [{0: batch} for _ in inputs]
    # forward(*inputs) hands over one argument that holds them all.
    code = getattr(type(module).forward, "__code__", None)
    takes_many = code is not None and code.co_flags & 0x04 and code.co_argcount == 1
    return (tuple(shapes),) if takes_many else tuple(shapes)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[nn.Module]:
    """The module in eval mode on the CPU in float32; the caller's own is as before afterwards."""
    tensors = [*module.parameters(), *module.buffers()]
    if any(t.device.type != "cpu" or t.dtype in (torch.float16, torch.bfloat16, torch.float64) for t in tensors):
        module = copy.deepcopy(module).cpu().float()
    training = {m: m.training for m in module.modules()}
    fast = torch.backends.mha.get_fastpath_enabled()
    # The fast path is one operation for a whole encoder layer, which hides its weights.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield module.eval()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for m, was in training.items():
            m.training = was


def module_path(node: Node) -> str:
    """The path of the module whose forward made this node."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = str(stack[-1][0]) if stack else ""
    return "" if path.startswith("_empty_nn_module_stack") else path
