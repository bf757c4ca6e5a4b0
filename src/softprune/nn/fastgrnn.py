"""FastGRNN: a gated recurrence whose gate and update share their matrices, of full, fixed or learnt rank.

Reference: A. Kusupati et al., "FastGRNN: a fast, accurate, stable and tiny kilobyte sized gated recurrent neural
network", NeurIPS 2018.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softprune.nn.low_rank import LowRankLinear
from softprune.ops.recurrence import Curve, fastgrnn, fastgrnn_step
from softprune.ops.recurrence.fastgrnn import check_curve


class FastGRNNCell(nn.Module):
    """One step of FastGRNN.

        pre = W x + U h
        z   = gate(pre + gate_bias),    c = update(pre + update_bias)
        h'  = z * h + (zeta * (1 - z) + nu) * c

    with zeta and nu the sigmoids of two trained numbers. W and U are the weights of ``w`` and ``u``: plain Linear
    layers at full rank, `LowRankLinear` with a fixed rank, and with ``learned`` also with an importance vector m each,
    the Parameters ``w.m`` and ``u.m``.

    Matrices start normal with deviation 0.1, biases at 1, zeta at sigmoid(1), nu at sigmoid(-4).

    Args:
        rank_w: rank of W, 1 to min(input_size, hidden_size); None for full rank.
        rank_u: rank of U, 1 to hidden_size; None for full rank.
        learned: factor both matrices and weigh their directions; a rank that is given is where learning begins.
        gate: non-linearity of the gate, one of `softprune.ops.recurrence.CURVES`.
        update: non-linearity of the update, likewise.

    >>> cell = FastGRNNCell(9, 80, learned=True)
    >>> cell(torch.zeros(2, 9), torch.zeros(2, 80)).shape, cell.w.m.shape, cell.u.m.shape
    (torch.Size([2, 80]), torch.Size([9]), torch.Size([80]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        rank_w: int | None = None,
        rank_u: int | None = None,
        learned: bool = False,
        gate: Curve = "sigmoid",
        update: Curve = "tanh",
    ) -> None:
        super().__init__()
        check_curve(gate, "gate")
        check_curve(update, "update")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.gate: Curve = gate
        self.update: Curve = update
        self.w = _matrix(input_size, hidden_size, rank_w, learned=learned)
        self.u = _matrix(hidden_size, hidden_size, rank_u, learned=learned)
        self.gate_bias = nn.Parameter(torch.ones(hidden_size))
        self.update_bias = nn.Parameter(torch.ones(hidden_size))
        self.zeta = nn.Parameter(torch.tensor([1.0]))
        self.nu = nn.Parameter(torch.tensor([-4.0]))

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """The state after inputs [n, input_size] and the state before, [n, hidden_size]."""
        return fastgrnn_step(
            F.linear(x, self.w.weight), h, u=self.u.weight, gate_bias=self.gate_bias, update_bias=self.update_bias,
            zeta=self.zeta.sigmoid(), nu=self.nu.sigmoid(), gate=self.gate, update=self.update,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, gate={self.gate}, update={self.update}"


class FastGRNN(nn.Module):
    """FastGRNN over sequences of equal length; see `FastGRNNCell`, whose arguments it takes.

    On a CPU in float32 all steps run in one compiled operator, otherwise in a loop.

    >>> states, last = FastGRNN(9, 80, rank_u=8)(torch.zeros(2, 128, 9))
    >>> states.shape, last.shape
    (torch.Size([2, 128, 80]), torch.Size([2, 80]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        rank_w: int | None = None,
        rank_u: int | None = None,
        learned: bool = False,
        gate: Curve = "sigmoid",
        update: Curve = "tanh",
    ) -> None:
        super().__init__()
        self.cell = FastGRNNCell(
            input_size, hidden_size, rank_w=rank_w, rank_u=rank_u, learned=learned, gate=gate, update=update
        )

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Inputs [n, steps, input_size] to all states [n, steps, hidden_size] and the last one [n, hidden_size].

        `h` is the state before the first step, [n, hidden_size]; zeros by default.
        """
        cell = self.cell
        return fastgrnn(
            x, w=cell.w.weight, u=cell.u.weight, gate_bias=cell.gate_bias, update_bias=cell.update_bias,
            zeta=cell.zeta.sigmoid(), nu=cell.nu.sigmoid(), start=h, gate=cell.gate, update=cell.update,
        )  # fmt: skip


def _matrix(inputs: int, outputs: int, rank: int | None, *, learned: bool) -> nn.Linear | LowRankLinear:
    if rank is None and not learned:
        dense = nn.Linear(inputs, outputs, bias=False)
        nn.init.normal_(dense.weight, std=0.1)
        return dense
    layer = LowRankLinear(inputs, outputs, rank=rank, bias=False, learned=learned)
    for factor in (layer.up, layer.down):
        nn.init.normal_(factor, std=0.1)
    return layer


class FastGRNNClassifier(nn.Module):
    """FastGRNN, then a linear layer on the last state; both start as in EdgeML (classifier normal with deviation 1).

    Arguments as of `FastGRNNCell`, and the number of classes.

    >>> FastGRNNClassifier(9, 80, classes=2, rank_w=9, rank_u=8)(torch.zeros(3, 128, 9)).shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        classes: int,
        rank_w: int | None = None,
        rank_u: int | None = None,
        learned: bool = False,
        gate: Curve = "sigmoid",
        update: Curve = "tanh",
    ) -> None:
        super().__init__()
        self.rnn = FastGRNN(
            input_size, hidden_size, rank_w=rank_w, rank_u=rank_u, learned=learned, gate=gate, update=update
        )
        self.fc = nn.Linear(hidden_size, classes)
        nn.init.normal_(self.fc.weight)
        nn.init.normal_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Sequences [n, steps, input_size] to logits [n, classes]."""
        _, last = self.rnn(x)
        return self.fc(last)


def fastgrnn_har2(
    *,
    rank_w: int | None = None,
    rank_u: int | None = None,
    learned: bool = False,
    hidden_size: int = 80,
    gate: Curve = "tanh",
) -> FastGRNNClassifier:
    """The paper's network for HAR-2: 9 signals, 80 hidden units, 2 classes, a tanh gate as FastGRNN's authors chose."""
    return FastGRNNClassifier(9, hidden_size, classes=2, rank_w=rank_w, rank_u=rank_u, learned=learned, gate=gate)


def fastgrnn_google12(
    *,
    rank_w: int | None = None,
    rank_u: int | None = None,
    learned: bool = False,
    hidden_size: int = 100,
    gate: Curve = "sigmoid",
) -> FastGRNNClassifier:
    """The paper's network for Google-12: 32 filters, 100 hidden units, 12 classes."""
    return FastGRNNClassifier(32, hidden_size, classes=12, rank_w=rank_w, rank_u=rank_u, learned=learned, gate=gate)
