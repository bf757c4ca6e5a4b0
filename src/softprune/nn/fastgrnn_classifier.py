"""Classifiers of sequences: FastGRNN and a linear layer on its last state."""

from __future__ import annotations

from torch import Tensor, nn

from softprune.nn.fastgrnn import FastGRNN
from softprune.ops.recurrence import Curve


class FastGRNNClassifier(nn.Module):
    """FastGRNN, then a linear layer on the last state; both start as in EdgeML (classifier normal with deviation 1).

    Args:
        input_size: features of an input.
        hidden_size: size of the state.
        classes: how many there are.
        rank_w: rank of W; None for full rank.
        rank_u: rank of U; None for full rank.
        learned: whether the ranks are learnt.
        gate: non-linearity of the gate.
        update: non-linearity of the update.

    >>> import torch
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
