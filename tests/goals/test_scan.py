"""Sweeps in pieces, at once and by threads find the same, whatever the layout of the tensor and of its thresholds."""

import numpy as np
import pytest
import torch

from softprune.goals import scan as sweep
from softprune.goals.scan import count_nonzero, find, for_each, rows_of, signed_sums

CASES = {
    "one": ((6, 5, 3, 3), (1,)),
    "filter": ((6, 5, 3, 3), (6, 1, 1, 1)),
    "second axis": ((6, 5, 3, 3), (1, 5, 1, 1)),
    "weight": ((6, 5, 3, 3), (6, 5, 3, 3)),
    "rows": ((12, 40), (12, 1)),
    "two rows": ((2, 30), (2, 1)),
    "two columns": ((9, 2), (9, 1)),
    "vector": ((50,), (1,)),
}


def made(case, layout, dtype=torch.float32):
    shape, grain = CASES[case]
    torch.manual_seed(0)
    w, grad = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    if layout == "channels last" and len(shape) == 4:
        w, grad = (t.to(memory_format=torch.channels_last) for t in (w, grad))
    return w, grad, torch.rand(grain) * 0.5 + 0.2


def per_row(rows, values):
    return (values.flatten() if rows.group is None else values.flatten()[rows.group]).numpy()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("piece", [1, 7, 20, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_is_between_two_thresholds(monkeypatch, case, layout, piece, dtype):
    monkeypatch.setattr(sweep, "PIECE", piece)
    w, _, bottom = made(case, layout, dtype)
    rows = rows_of(w, bottom.shape)
    place, size, above = find(rows, per_row(rows, bottom), per_row(rows, bottom + 0.5))
    sizes = w.float().abs()
    inside = (sizes > bottom) & (sizes <= bottom + 0.5)
    assert above == int((sizes > bottom + 0.5).sum())
    assert len(place) == int(inside.sum()) and (place[1:] > place[:-1]).all()
    assert sorted(size.tolist()) == sorted(sizes[inside].tolist())
    assert torch.equal(rows.flat[torch.from_numpy(place)].float().abs(), torch.from_numpy(size))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("piece", [1, 7, 20, 1000])
def test_sums_with_the_signs_of_what_lives(monkeypatch, case, layout, piece):
    monkeypatch.setattr(sweep, "PIECE", piece)
    w, grad, alpha = made(case, layout)
    rows = rows_of(w, alpha.shape)
    sums = torch.from_numpy(signed_sums(rows, rows_of(grad, (1,)).flat, per_row(rows, alpha))).float()
    if rows.group is not None:
        sums = torch.zeros(alpha.numel()).index_add_(0, rows.group, sums)
    expected = (grad * w.sign() * (w.abs() > alpha)).sum_to_size(alpha.shape)
    torch.testing.assert_close(sums.view_as(expected), expected)


@pytest.mark.parametrize("case", CASES)
def test_at_once_as_on_an_accelerator(case):
    w, grad, alpha = made(case, "channels last")
    rows = rows_of(w, alpha.shape)
    low, high = per_row(rows, alpha), per_row(rows, alpha + 0.5)
    for ours, theirs in zip(find(rows, low, high), sweep._find_at_once(rows, low, high), strict=True):
        assert (ours == theirs).all() if not isinstance(ours, int) else ours == theirs
    slope = rows_of(grad, (1,)).flat
    torch.testing.assert_close(
        torch.from_numpy(signed_sums(rows, slope, low)),
        torch.from_numpy(sweep._signed_sums_at_once(rows, slope, low)),
        check_dtype=False,
    )


def test_zeros_are_counted_only_as_far_as_needed(monkeypatch):
    monkeypatch.setattr(sweep, "PIECE", 4)
    rows = rows_of(torch.tensor([0.0, 1, 0, 2, 0, 0, 3, 0, 4, 5]), (1,))
    assert [count_nonzero(rows, enough=n) for n in (1, 2, 3, 5, 9)] == [1, 2, 3, 5, 5]


def test_the_first_weight_is_counted_too():
    assert count_nonzero(rows_of(torch.tensor([3.0, 0, 4]), (1,)), enough=9) == 2


def test_a_weight_that_is_a_threshold_is_below_it_at_once_too():
    rows = rows_of(torch.tensor([1.0, -2.0, 3.0, 4.0]), (1,))
    low, high = (np.array([t], np.float32) for t in (1.0, 3.0))
    for found in (find(rows, low, high), sweep._find_at_once(rows, low, high)):
        assert (found.position.tolist(), found.size.tolist(), found.above) == ([1, 2], [2.0, 3.0], 1)


def test_threads_keep_the_order(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert for_each(lambda n: n * n, range(50), sweep.WORTH_THREADS) == [n * n for n in range(50)]
