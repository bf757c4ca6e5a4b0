"""Printed numbers and their digits."""

import math

import pytest
from benchmarks.paper.printed import Printed


@pytest.mark.parametrize(
    ("text", "value", "step"),
    [("4.47M", 4.47e6, 1e4), ("818M", 818e6, 1e6), ("1.68G", 1.68e9, 1e7), ("~600M", 6e8, 1e6), ("95.03", 95.03, 0.01)],
)
def test_value_and_step(text, value, step):
    assert Printed(text).value == pytest.approx(value)
    assert Printed(text).step == pytest.approx(step)


def test_rounding_decides():
    # 766.6 rounds to 767, and cut off it is 766.
    assert not Printed("766M").fits(766.637e6)
    assert Printed("766M").cut(766.637e6)
    assert Printed("343M").fits(342.705e6) and not Printed("343M").cut(342.705e6)
    assert Printed("0.54M").fits(535_000) and not Printed("0.54M").fits(534_000)
    assert Printed("1.57M").fits(1.5760e6, slack=1300)


def test_one_digit_more():
    assert Printed("4.47M").like(4_775_866) == "4.776M"
    assert Printed("95.03").like(95.02401) == "95.024"


def test_what_is_no_number():
    assert math.isnan(Printed("-").value)
    with pytest.raises(ValueError, match=r"'about 5' is no printed number"):
        assert Printed("about 5").value
