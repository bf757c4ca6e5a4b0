"""Rice codes of gaps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softprune.deploy.format.rice import best_bits, rice_decode, rice_encode


def test_a_code_by_hand():
    # k = 2: 1 = 0|01, 6 = 10|10, 9 = 110|01; first all quotients (0 10 110), then all rests, lowest bit first.
    code = rice_encode(np.array([1, 6, 9]), 2)
    assert code.tolist() == [0b011010, 0b011001]
    assert rice_decode(code, 3, 2).tolist() == [1, 6, 9]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5000), max_size=200), st.integers(0, 12))
def test_codes_give_gaps_back(gaps, bits):
    assert rice_decode(rice_encode(np.array(gaps, np.int64), bits), len(gaps), bits).tolist() == gaps


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2**20), min_size=1, max_size=50))
def test_no_other_number_of_bits_is_shorter(gaps):
    gaps = np.array(gaps, np.int64)
    sizes = [len(rice_encode(gaps, bits)) for bits in range(5, 24)]
    if (bits := best_bits(gaps)) >= 5:
        assert len(rice_encode(gaps, bits)) <= min(sizes) + 2  # bytes that are filled up


@pytest.mark.parametrize(
    ("code", "count", "bits", "message"),
    [
        ([0b11011010, 0b011001], 4, 2, "does not hold 4"),
        ([0b011010, 0b011001], 2, 2, "does not hold 2"),
        ([0b011010, 0b011001], 3, 3, "cannot hold|does not hold"),
        ([0b1011010, 0b011001], 3, 2, "does not hold 3"),
        ([0b011010, 0b1011001], 3, 2, "more than 3"),
        ([255], 1, 0, "does not hold 1"),
        ([0], 0, 0, "does not hold 0"),
        ([0], 1, 33, "cannot hold"),
        ([0], 1, -1, "cannot hold"),
        ([0], 10**15, 1, "cannot hold"),
        ([], 1, 0, "does not hold 1"),
    ],
)
def test_codes_that_hold_something_else_are_refused(code, count, bits, message):
    with pytest.raises(ValueError, match=message):
        rice_decode(np.array(code, np.uint8), count, bits)
