"""FastGRNN: sizes, starts, ranks, and that the ordinary sparsify works on it."""

import pytest
import torch
from torch import nn

import softprune
from softprune.budget.profiler import profile
from softprune.core.rule import Rule
from softprune.nn import FastGRNN, FastGRNNCell, FastGRNNClassifier, LowRankLinear, fold
from softprune.nn.catalog import build
from softprune.ops import Exp


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("ranks", "weights"),
    [({}, 7120), ({"rank_w": 9, "rank_u": 8}, 801 + 1280), ({"rank_w": 8, "rank_u": 7}, 712 + 1120)],
)
def test_the_sizes_are_the_papers(ranks, weights):
    # D H + H H (or the factors), 2 H biases, zeta and nu, and the classifier.
    assert count(build("fastgrnn_har2", ranks)) == weights + 160 + 2 + 162


def test_learnt_ranks_begin_full_with_an_importance_of_one():
    cell = build("fastgrnn_google12", {"learned": True}).rnn.cell
    assert (cell.w.rank, cell.u.rank) == (32, 100)
    assert torch.equal(cell.w.m.data, torch.ones(32))
    assert torch.equal(cell.u.m.data, torch.ones(100))


def test_it_starts_as_its_authors_start_it():
    model = build("fastgrnn_google12")
    cell = model.rnn.cell
    assert abs(cell.u.weight.std().item() - 0.1) < 0.01
    assert abs(model.fc.weight.std().item() - 1) < 0.1
    assert torch.equal(cell.gate_bias.data, torch.ones(100))
    assert (cell.zeta.item(), cell.nu.item()) == (1.0, -4.0)


@pytest.mark.parametrize("options", [{}, {"rank_w": 2, "rank_u": 3}, {"learned": True}])
def test_the_sequence_is_the_cell_again_and_again(options):
    rnn = FastGRNN(4, 6, **options)
    x, h = torch.randn(3, 5, 4), torch.randn(3, 6)
    states, last = rnn(x, h)
    for step in range(5):
        h = rnn.cell(x[:, step], h)
        torch.testing.assert_close(states[:, step], h, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(last, h, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank_w": 0}, "the rank of a 6 x 4 matrix is 1 to 4; got 0"),
        ({"rank_u": 7}, "the rank of a 6 x 6 matrix is 1 to 6; got 7"),
        ({"gate": "cosine"}, "the non-linearity of the gate is one of"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        FastGRNNCell(4, 6, **options)


def test_it_learns_which_half_of_a_sequence_is_larger():
    model = FastGRNNClassifier(2, 16, classes=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    first = None
    for _ in range(60):
        x = torch.randn(64, 12, 2)
        loss = nn.functional.cross_entropy(model(x), (x[:, :6, 0].sum(1) > x[:, 6:, 0].sum(1)).long())
        first = first or loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5 * first


def test_its_multiply_adds_are_counted_for_every_step():
    for model, x in (
        (build("fastgrnn_har2"), torch.zeros(1, 128, 9)),
        (build("fastgrnn_google12"), torch.zeros(1, 99, 32)),
    ):
        costs = {row.name: row.macs for row in profile(model, x).tensors}
        steps, hidden = x.shape[1], model.rnn.cell.hidden_size
        assert costs["rnn.cell.w.weight"] == steps * hidden * x.shape[2]
        assert costs["rnn.cell.u.weight"] == steps * hidden * hidden


def test_plain_matrices_are_sparsified_by_default():
    model = FastGRNNClassifier(4, 16, classes=3)
    sparsifier = softprune.sparsify(model, softprune.STR(), goal=softprune.Sparsity(0.5), example=torch.zeros(1, 5, 4))
    assert set(sparsifier.measure().densities) == {"rnn.cell.w.weight", "rnn.cell.u.weight", "fc.weight"}


def test_a_threshold_on_the_importances_removes_directions():
    model = FastGRNNClassifier(4, 16, classes=3, learned=True)
    with torch.no_grad():
        model.rnn.cell.u.m.copy_(torch.linspace(0.01, 1.6, 16))
    method = softprune.STR(g=Exp(), s_init=-0.2)  # a threshold of 0.82
    sparsifier = softprune.sparsify(model, method, skip="fc", rules=[Rule("*.m", skip=False)])
    assert set(sparsifier.measure().densities) == {"rnn.cell.w.m", "rnn.cell.u.m"}
    x = torch.randn(3, 5, 4)
    with pytest.raises(ValueError, match=r"rnn\.cell\.w is still managed: bake the model first"):
        fold(model)
    expected = model(x)
    expected.sum().backward()
    assert model.rnn.cell.u.parametrizations.m[0].s.grad.abs() > 0
    baked = sparsifier.bake(fold=False)
    small = fold(baked)
    assert isinstance(small.rnn.cell.w, nn.Linear)  # rank 4 of a 16 x 4 matrix: the factors would be larger
    assert isinstance(small.rnn.cell.u, nn.Linear | LowRankLinear)
    assert count(small) < count(baked)
    torch.testing.assert_close(small(x), expected, rtol=1e-5, atol=1e-6)


def test_in_double_precision_the_loop_runs():
    model = FastGRNNClassifier(4, 6, classes=3).double()
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    single = FastGRNNClassifier(4, 6, classes=3)
    single.load_state_dict(model.state_dict())
    assert model(x).dtype == torch.float64
    torch.testing.assert_close(single(x.float()).double(), model(x), rtol=1e-4, atol=1e-5)
