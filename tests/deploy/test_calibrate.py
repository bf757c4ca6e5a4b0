"""Ranges: what was counted is what was there, and the chosen code has the least error of those that were tried."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from softprune.deploy.calibrate import BINS, Means, Tally, bias_shifts, codes_by, observe, relative_error
from softprune.deploy.export.exporting import to_graph
from softprune.deploy.integers import Affine, plan_integers


def lost(code: Affine, x: np.ndarray) -> float:
    return float(np.square(code.values_of(code.bytes_of(x)) - x, dtype=np.float64).mean())


def watched(net: nn.Module, *batches: torch.Tensor):
    plan = plan_integers(to_graph(net.eval(), batches[0]), ())
    return plan, observe(plan, [[x.numpy()] for x in batches])


def test_a_histogram_that_grows_counts_every_number_but_zeros_in_its_place():
    random, tally = np.random.default_rng(0), Tally()
    parts = [random.normal(size=5000).astype(np.float32) * scale for scale in (0.01, 1, 30)]
    for x in parts:
        x[::10] = 0
        tally.add(x)
    everything = np.concatenate(parts)
    assert (tally.low, tally.high) == (everything.min(), everything.max())
    x, count = tally.histogram()
    assert count.sum() == np.count_nonzero(everything)
    wanted, _ = np.histogram(everything[everything != 0], np.append(x - tally.width / 2, np.inf))
    assert np.abs(np.cumsum(wanted) - np.cumsum(count)).max() <= 20
    assert tally.width < 4 * np.abs(everything).max() / BINS


@pytest.mark.parametrize("x", [np.zeros(5, np.float32), np.full(5, 1e-40, np.float32), np.zeros(0, np.float32)])
def test_a_value_that_is_always_zero_has_a_code(x):
    net = nn.Linear(5, 2)
    plan, seen = watched(net, torch.tensor(x).repeat(2, 1)[:, :5] if len(x) else torch.zeros(1, 5))
    assert codes_by(plan, seen, "mse") == {"x0": Affine(1.0, 0)}


@pytest.mark.parametrize("kind", ["positive", "even", "uneven"])
def test_the_code_with_the_least_error_cuts_outliers_and_never_loses_more_than_the_whole_range(kind):
    random = np.random.default_rng(0)
    x = random.normal(size=(20_000, 50)).astype(np.float32)
    x = {"positive": np.abs(x), "even": x, "uneven": np.maximum(x, -0.1)}[kind]
    x[0, 0] = 9
    plan, seen = watched(nn.Linear(50, 2), torch.tensor(x))
    (whole,), (best,) = (codes_by(plan, seen, way).values() for way in ("minmax", "mse"))
    assert lost(best, x) < 0.6 * lost(whole, x)
    assert 9 / whole.scale + whole.zero == pytest.approx(255, abs=1)
    assert {"positive": best.zero == 0, "even": 100 < best.zero < 156, "uneven": 0 < best.zero < 50}[kind]
    tried = [Affine(best.scale * factor, best.zero) for factor in (0.7, 0.8, 1.25, 1.5)]
    assert lost(best, x) <= 1.01 * min(lost(code, x) for code in tried)


def test_what_a_table_reads_is_cut_where_its_function_is_flat():
    net = nn.Sequential(nn.Linear(1, 1), nn.Hardswish(), nn.Linear(1, 1))
    with torch.no_grad():
        net[0].weight.fill_(1.0), net[0].bias.zero_()
    x = torch.linspace(-40, 4, 2000)[:, None]
    plan, seen = watched(net, x)
    code = next(code for group, code in codes_by(plan, seen, "mse").items() if group.endswith(".sums"))
    assert -12 < (0 - code.zero) * code.scale < -2.5
    assert (255 - code.zero) * code.scale > 3.5


@pytest.mark.parametrize("groups", [1, 2])
def test_means_of_what_weights_see_give_the_mean_of_a_convolution(groups):
    torch.manual_seed(0)
    net = nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=groups)
    x = torch.randn(5, 4, 9, 8)
    plan, seen = watched(net, x, x + 1)
    (op,) = [op for op in plan.graph.ops if op.output in plan.layers]
    weight = plan.graph.weights[op.fields["weight"]]
    mean = seen.means[op.output].at_weights(op, weight)
    found = np.einsum("goi,gi->go", weight.reshape(groups, 6 // groups, -1), mean).reshape(-1)
    wanted = F.conv2d(torch.cat([x, x + 1]), net.weight, None, (2, 1), (1, 2), (1, 2), groups).mean((0, 2, 3))
    assert np.abs(found - wanted.detach().numpy()).max() < 1e-5


def test_means_of_rows_are_over_all_axes_but_the_last():
    net = nn.Linear(4, 3)
    plan, seen = watched(net, torch.arange(24.0).reshape(2, 3, 4))
    (op,) = [op for op in plan.graph.ops if op.output in plan.layers]
    assert isinstance(seen.means[op.output], Means)
    assert seen.means[op.output].at_weights(op, plan.graph.weights[op.fields["weight"]]).tolist() == [[10, 11, 12, 13]]


def test_shifts_of_biases_are_what_rounded_weights_move_the_sums_by_in_the_mean():
    torch.manual_seed(0)
    net = nn.Linear(40, 5)
    x = torch.rand(64, 40)
    plan, seen = watched(net, x)
    codes = codes_by(plan, seen, "mse")
    ((name, shift),) = bias_shifts(plan, seen, codes).items()
    assert name in plan.layers
    step = net.weight.detach().abs().amax(1, keepdim=True) / 127
    rounded = (net.weight.detach() / step).round() * step
    wanted = ((net.weight.detach() - rounded) @ x.mean(0)).numpy()
    assert np.abs(shift - wanted).max() < 1e-6
    assert np.abs(shift).max() > 1e-4


def test_the_error_of_outputs_is_relative_to_their_squares_and_the_mean_of_all():
    wanted = [[np.array([3.0, 4.0], np.float32), np.array([1.0], np.float32)]]
    found = [[np.array([3.0, 3.0], np.float32), np.array([1.0], np.float32)]]
    assert relative_error(found, wanted) == pytest.approx(0.5 * 1 / 25)
