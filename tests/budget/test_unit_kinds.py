"""Units: which there are, and what is none."""

import pytest

from softprune.budget.units import Units


def test_units_without_a_size_are_those_of_the_class():
    assert [Units("weight"), Units("filter"), Units("rank")] == [Units.weight, Units.filter, Units.rank]
    assert Units() == Units.weight


def test_only_blocks_have_a_size():
    assert Units.block(4, 1).text == "block 4x1" and Units.filter.text == "filter"
    for rows, cols in ((1, 2), (2, 1)):
        with pytest.raises(ValueError, match="only blocks have rows and columns"):
            Units("filter", rows, cols)


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_a_size_that_is_no_number_of_rows_is_refused(size):
    for rows, cols in ((size, 2), (2, size)):
        with pytest.raises(ValueError, match="whole numbers of rows and columns"):
            Units.block(rows, cols)
