"""DSR by hand: Mostafa and Wang 2019, Algorithm 1, with the constants of the authors' code."""

import pytest
import torch
from on_paper import begun, layer, mask, push, raw, set_mask
from torch.optim import SGD

import softprune
from softprune import Budget, Flops, Params, Sparsity, constant
from softprune.methods import DSR
from softprune.methods.dsr import below
from softprune.testing.contract import found

HALVES = Budget({"0.weight": 0.5, "1.weight": 0.5})
ZEROS = [0.0] * 8


def memory(sparsifier):
    (context,) = sparsifier.contexts.values()
    return context.memory


def test_what_is_below_the_threshold_goes():
    w, on = torch.tensor([0.1, -0.3, 0.5, 0.0]), torch.tensor([True, True, True, False])
    assert below(w, on, 0.4).tolist() == [True, True, False, False]
    assert not below(w, on, 0.1).any(), "the comparison is strict"


def test_the_last_one_of_a_tensor_stays():
    w, on = torch.tensor([0.1, -0.3, 0.2, 9.0]), torch.tensor([True, True, True, False])
    assert below(w, on, 1.0).tolist() == [True, False, True, False]
    assert not below(w, torch.zeros(4, dtype=torch.bool), 1.0).any()


def two_layers(**settings):
    first = [0.1, -0.2, 0.3, 0.9, 0.5, 0.5, 0.5, 0.5]
    second = [0.8, 0.9, -1.0, 1.1, 0.5, 0.5, 0.5, 0.5]
    method = DSR(**{"every": 1, "moves": 0.25, "threshold": 0.4, **settings})
    sparsifier, optimizer = begun(layer(first, second), method, steps=40, budget=HALVES)
    for number in (0, 1):
        set_mask(sparsifier, number, [1, 1, 1, 1, 0, 0, 0, 0])
    return sparsifier, optimizer


def test_weights_move_to_the_tensor_that_keeps_more():
    sparsifier, optimizer = two_layers()
    push(sparsifier, optimizer, ZEROS, ZEROS)
    first, second = mask(sparsifier, 0), mask(sparsifier, 1)
    # Three of the first go (|w| < 0.4), none of the second. What is left is 1 and 4: of 3 new ones 0.6 and 2.4.
    assert first[:4] == [0, 0, 0, 1] and sum(first[4:]) == 1
    assert second[:4] == [1, 1, 1, 1] and sum(second[4:]) == 2
    # Grown at places that were empty before, and from 0.
    assert all(w == 0 for w, on in zip(raw(sparsifier, 0)[4:], first[4:], strict=True) if on)
    assert all(w == 0 for w, on in zip(raw(sparsifier, 1)[4:], second[4:], strict=True) if on)


@pytest.mark.parametrize(
    ("moves", "threshold"),
    [(0.125, 0.2), (0.375, 0.4), (0.5, 0.8)],  # 3 of 8 moved; wanted are 1, 3 and 4
    ids=["too many: halved", "as wanted", "too few: doubled"],
)
def test_the_threshold_follows_the_number_of_moves(moves, threshold):
    sparsifier, optimizer = two_layers(moves=moves)
    push(sparsifier, optimizer, ZEROS, ZEROS)
    assert memory(sparsifier)["threshold"] == pytest.approx(threshold)


def test_intervals_double_in_every_quarter_and_end():
    sparsifier, optimizer = two_layers(every=2, end=0.9)
    seen, changed = None, []
    for step in range(1, 41):
        push(sparsifier, optimizer, ZEROS, ZEROS)
        now = memory(sparsifier).get("threshold")
        changed += [step] if now != seen else []
        seen = now
    # Every 2 up to step 9, 4 up to 19, 8 up to 29, 16 up to 36; H changes at most then.
    assert set(changed) <= {2, 4, 6, 8, 12, 16, 24, 32} and len(changed) > 3


@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.9])
def test_the_total_is_kept_also_where_more_go_than_places_are_empty(sparsity):
    torch.manual_seed(0)
    model = layer(torch.randn(40).tolist(), torch.randn(60).tolist())
    sparsifier, optimizer = begun(model, DSR(every=1, threshold=1.0), steps=12, goal=Sparsity(sparsity))
    for _ in range(12):
        push(sparsifier, optimizer, torch.randn(40).tolist(), torch.randn(60).tolist())
        assert sum(mask(sparsifier, 0)) + sum(mask(sparsifier, 1)) == Sparsity(sparsity).kept(100)


def test_many_random_moves_find_a_sparse_solution():
    # Of 8 weights in the solution a random mask has one; the search is by chance, so no contract asks for all.
    method = DSR(every=2, moves=0.3, threshold=0.05)
    assert sum(found(method, seed) for seed in range(2)) >= 12


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="counts multiply-adds: divide it first, as in budget=uniform"):
        softprune.sparsify(layer([1.0, 2.0]), DSR(), goal=Flops(1))
    with pytest.raises(ValueError, match='leave out scope="all"'):
        softprune.sparsify(layer([1.0, 2.0]), DSR(), goal=Params(1, scope="all"))
    with pytest.raises(ValueError, match="fewer than the 2 tensors"):
        softprune.sparsify(layer([1.0, 2.0], [1.0]), DSR(), goal=Params(1))
    with pytest.raises(ValueError, match="DSR is sparse from the first step on"):
        softprune.sparsify(layer([1.0, 2.0]), DSR(), goal=Params(1), schedule=constant())
    with pytest.raises(ValueError, match="threshold is a positive number"):
        DSR(threshold=0.0)
    with pytest.raises(ValueError, match="moves is a fraction"):
        DSR(moves=2.0)


def test_a_state_is_not_changed_by_training_on():
    sparsifier, optimizer = two_layers()
    push(sparsifier, optimizer, ZEROS, ZEROS)
    state = sparsifier.state_dict()
    before = dict(state["memories"][0])
    for _ in range(3):
        push(sparsifier, optimizer, ZEROS, ZEROS)
    assert state["memories"] == [before] and memory(sparsifier) != before


@pytest.mark.parametrize(
    ("settings", "moves"),
    [
        ({"every": 2, "end": 0.8}, [2, 4, 6, 8, 12, 16, 24, 32]),  # every 2, 4, 8 and 16 steps; the end is included
        ({"every": 5, "end": 1.0}, [5, 10, 20, 40]),  # the last step belongs to the fourth quarter
    ],
    ids=str,
)
def test_the_steps_at_which_weights_move(settings, moves):
    # Never as many as all weights can go, so H is doubled at every move.
    sparsifier, optimizer = two_layers(moves=1.0, **settings)
    seen, changed = None, []
    for step in range(1, 41):
        push(sparsifier, optimizer, ZEROS, ZEROS)
        now = memory(sparsifier).get("threshold")
        changed += [step] if now != seen else []
        seen = now
    assert changed == moves


def test_what_went_and_what_is_new_has_no_momentum():
    model = layer([0.1, -0.2, 0.3, 0.9, 0.5, 0.5])
    optimizer = SGD(model.parameters(), lr=0.0, momentum=0.9)
    method = DSR(every=1, threshold=0.25)
    sparsifier, _ = begun(model, method, steps=40, optimizer=optimizer, budget=Budget({"0.weight": 4 / 6}))
    set_mask(sparsifier, 0, [1, 1, 1, 1, 0, 0])
    push(sparsifier, optimizer, [1.0] * 6)
    # The first two go, and both empty places are filled.
    assert mask(sparsifier) == [0, 0, 1, 1, 1, 1]
    assert optimizer.state[sparsifier.targets[0].raw]["momentum_buffer"].tolist() == [[0.0, 0.0, 1.0, 1.0, 0.0, 0.0]]


@pytest.mark.parametrize("wrong", [{"every": 0}, {"end": 0.0}, {"threshold": float("inf")}], ids=str)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DSR(**wrong)
