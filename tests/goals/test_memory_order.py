"""Tensors in the order of their memory, by hand."""

import pytest
import torch

from softprune.goals.scan import Rows, flat, flat_like, lower_, rows_of


def pieces(count, columns, piece):
    rows = Rows(torch.zeros(count * columns), count, columns)
    return [((a.start, a.stop), (b.start, b.stop)) for a, b in rows.pieces(piece)]


def test_short_rows_go_several_at_once_and_long_ones_in_parts():
    assert pieces(5, 3, 7) == [((0, 6), (0, 2)), ((6, 12), (2, 4)), ((12, 15), (4, 5))]
    assert pieces(2, 7, 7) == [((0, 7), (0, 1)), ((7, 14), (1, 2))]
    assert pieces(2, 5, 3) == [((0, 3), (0, 1)), ((3, 5), (0, 1)), ((5, 8), (1, 2)), ((8, 10), (1, 2))]


def test_memory_order_of_channels_last_and_of_transposed_tensors():
    w = torch.arange(12.0).view(1, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    assert flat(w).tolist() == [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
    assert flat(w).data_ptr() == w.data_ptr(), "a view"
    other = torch.arange(12.0).view(1, 3, 2, 2)
    assert flat_like(other, w).tolist() == flat(w).tolist()
    turned = torch.arange(6.0).view(2, 3).t()
    assert flat(turned).tolist() == [0, 1, 2, 3, 4, 5] and flat(turned).data_ptr() == turned.data_ptr()


@pytest.mark.parametrize(
    ("shape", "grain", "count", "columns", "group"),
    [
        ((4, 3), (1,), 1, 12, None),
        ((4, 3), (1, 1), 1, 12, None),
        ((4, 3), (4, 1), 4, 3, None),
        ((4, 3), (4, 3), 12, 1, None),
        # Thresholds of the second dimension: every weight is a row, with the threshold of its column.
        ((2, 3), (1, 3), 6, 1, [0, 1, 2, 0, 1, 2]),
        ((2, 3), (3,), 6, 1, [0, 1, 2, 0, 1, 2]),
        ((2, 3, 2), (3, 1), 6, 2, [0, 1, 2, 0, 1, 2]),
    ],
)
def test_rows_are_what_shares_a_threshold(shape, grain, count, columns, group):
    rows = rows_of(torch.zeros(shape), grain)
    assert (rows.count, rows.columns) == (count, columns)
    assert (None if rows.group is None else rows.group.tolist()) == group


def test_rows_of_a_tensor_whose_memory_goes_the_other_way():
    turned = torch.arange(6.0).view(2, 3).t()  # of shape 3, 2; in memory its columns
    rows = rows_of(turned, (3, 1))
    assert (rows.count, rows.columns, rows.group.tolist()) == (6, 1, [0, 1, 2, 0, 1, 2])
    by_column = rows_of(turned, (1, 2))
    assert (by_column.count, by_column.columns, by_column.group) == (2, 3, None)
    by_weight = rows_of(turned, (3, 2))
    # The thresholds are numbered as they are, row by row: 0 1, 2 3, 4 5.
    assert (by_weight.count, by_weight.columns, by_weight.group.tolist()) == (6, 1, [0, 2, 4, 1, 3, 5])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_lowering_goes_to_the_next_number_towards_zero(dtype):
    w = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=dtype)
    expected = w.clone()
    half = torch.finfo(dtype).eps / 2  # the spacing below 1; twice that below 2
    expected[0, 0] -= half
    expected[0, 1] += 2 * half
    assert lower_(w, torch.tensor([0, 1])) is w
    assert torch.equal(w, expected)


def test_places_are_those_of_memory():
    w = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t()
    lower_(w, torch.tensor([1]))  # in memory 1, 2, 3, 4
    assert (w != torch.tensor([[1.0, 3.0], [2.0, 4.0]])).tolist() == [[False, False], [True, False]]
