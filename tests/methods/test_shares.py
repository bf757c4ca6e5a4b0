"""Whole weights in proportion."""

from hypothesis import given
from hypothesis import strategies as st

from softprune.methods.masks import share_out


def test_proportions_by_hand():
    assert share_out(10, {"a": 3.0, "b": 2.0}, {"a": 99, "b": 99}) == {"a": 6, "b": 4}


def test_the_largest_remainder_gets_the_rest():
    # 7 * (1/2, 1/3, 1/6) = 3.5, 2.33, 1.17: whole parts 3, 2, 1, and the one left goes to the first.
    assert share_out(7, {"a": 3.0, "b": 2.0, "c": 1.0}, {"a": 9, "b": 9, "c": 9}) == {"a": 4, "b": 2, "c": 1}


def test_equal_remainders_go_in_order():
    assert share_out(1, {"a": 1.0, "b": 1.0}, {"a": 9, "b": 9}) == {"a": 1, "b": 0}


def test_what_does_not_fit_goes_to_the_others():
    # a would get 8 of 10 and has room for 2; b and c share the 8 as 1 to 3.
    assert share_out(10, {"a": 16.0, "b": 1.0, "c": 3.0}, {"a": 2, "b": 9, "c": 9}) == {"a": 2, "b": 2, "c": 6}


def test_without_any_weight_all_are_equal():
    assert share_out(4, {"a": 0.0, "b": 0.0}, {"a": 9, "b": 9}) == {"a": 2, "b": 2}


def test_those_without_a_claim_get_what_no_other_has_room_for():
    assert share_out(5, {"a": 1.0, "b": 0.0}, {"a": 3, "b": 9}) == {"a": 3, "b": 2}


def test_no_more_than_there_is_room():
    assert share_out(9, {"a": 1.0, "b": 1.0}, {"a": 2, "b": 1}) == {"a": 2, "b": 1}
    assert share_out(0, {"a": 1.0}, {"a": 2}) == {"a": 0}


claims = st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 50)), min_size=1, max_size=6)


@given(st.integers(0, 200), claims)
def test_the_sum_is_exact_and_no_room_is_exceeded(total, given_claims):
    by = {str(n): claim for n, (claim, _) in enumerate(given_claims)}
    room = {str(n): places for n, (_, places) in enumerate(given_claims)}
    got = share_out(total, by, room)
    assert sum(got.values()) == min(total, sum(room.values()))
    assert all(0 <= got[name] <= room[name] for name in by)


def test_claims_below_one_count_as_they_are():
    # 2.5 and 7.5: of equal remainders the first has the one that is left over.
    assert share_out(10, {"a": 0.2, "b": 0.6}, {"a": 9, "b": 9}) == {"a": 3, "b": 7}
