"""AC/DC by hand: Peste et al. 2021; the phases are those of the authors' ImageNet configuration."""

from itertools import pairwise

import pytest
from on_paper import begun, layer, mask, push, raw
from torch.optim import SGD

import softprune
from softprune import Params
from softprune.methods import ACDC
from softprune.methods.acdc import Alternation


def test_the_phases_of_the_paper():
    # 100 epochs: compressed from 10, 20, ..., 70 and from 85 on, dense again from 15, 25, ..., 75.
    alternate = Alternation()
    compressed = [epoch for epoch in range(100) if alternate((epoch + 0.5) / 100) == 1.0]
    wanted = [e for start in range(10, 80, 10) for e in range(start, start + 5)] + list(range(85, 100))
    assert compressed == wanted


def test_it_always_ends_compressed_and_knows_only_two_states():
    for phases in (1, 2, 5):
        alternate = Alternation(0.2, 0.3, phases)
        values = [alternate(n / 1000) for n in range(1001)]
        turns = sum(a != b for a, b in pairwise(values))
        assert set(values) == {0.0, 1.0} and values[-1] == 1.0 and values[0] == 0.0
        assert turns == 2 * phases + 1


def test_compressing_and_decompressing():
    # Warm-up to step 2, compressed to 4, dense to 8 (twice as long), compressed to 10.
    model = layer([0.1, -0.4, 0.3, 0.2])
    optimizer = SGD(model.parameters(), lr=1.0, momentum=0.5)
    method = ACDC(warmup=0.2, final=0.2, phases=1)
    sparsifier, _ = begun(model, method, optimizer=optimizer, goal=Params(2))
    momentum = lambda: optimizer.state[sparsifier.targets[0].raw]["momentum_buffer"].flatten().tolist()  # noqa: E731
    push(sparsifier, optimizer, [0.0, 0.0, 0.0, -0.1])
    assert mask(sparsifier) == [1, 1, 1, 1] and raw(sparsifier) == pytest.approx([0.1, -0.4, 0.3, 0.3])
    push(sparsifier, optimizer, [0.0] * 4)
    # w = (0.1, -0.4, 0.3, 0.35): the two largest stay.
    assert mask(sparsifier) == [0, 1, 0, 1]
    push(sparsifier, optimizer, [0.0, 0.0, 0.0, 0.05])
    # What was pruned is 0, and the momentum of before is gone: 0.35 - 0.05 only.
    assert raw(sparsifier) == pytest.approx([0.0, -0.4, 0.0, 0.3]) and momentum() == pytest.approx([0, 0, 0, 0.05])
    push(sparsifier, optimizer, [0.0] * 4)
    assert mask(sparsifier) == [1, 1, 1, 1]
    push(sparsifier, optimizer, [0.9, 0.0, 0.0, 0.0])
    # All train again, those that were pruned from 0, without momentum.
    assert raw(sparsifier) == pytest.approx([-0.9, -0.4, 0.0, 0.275]) and momentum() == pytest.approx([0.9, 0, 0, 0])
    for _ in range(5):
        push(sparsifier, optimizer, [0.0] * 4)
    assert mask(sparsifier) == [1, 1, 0, 0] and raw(sparsifier)[2:] == [0.0, 0.0]


def test_too_many_phases_for_the_run_are_refused():
    with pytest.raises(ValueError, match=r"7 phases do not fit into 10 steps, 0\.5 for each: lower phases"):
        begun(layer([1.0, 2.0]), ACDC(), goal=Params(1))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"warmup": 1.0}, "leave room"),
        ({"final": 0.0}, "leave room"),
        ({"warmup": 0.6, "final": 0.5}, "leave room"),
        ({"phases": 0}, "phases is a number"),
        ({"phases": True}, "phases is a number"),
        ({"min_keep": -1}, "min_keep"),
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        ACDC(**wrong)


def test_no_total_is_refused():
    with pytest.raises(ValueError, match="ACDC prunes to a total and got none"):
        softprune.sparsify(layer([1.0, 2.0]), ACDC())


def test_the_ends_of_the_phases():
    # Quarters of warm-up and end; between them slots of a sixth: compressed, then dense for two.
    alternate = Alternation(0.25, 0.25, 1)
    assert [alternate(p) for p in (0.0, 0.24, 0.25, 0.41, 0.42, 0.74, 0.75, 1.0)] == [0, 0, 1, 1, 0, 0, 1, 1]


def test_phases_of_one_step_each_fit():
    sparsifier, _ = begun(layer([1.0, 2.0]), ACDC(warmup=0.25, final=0.25, phases=1), steps=6, goal=Params(1))
    assert sparsifier.total_steps == 6
    assert ACDC(warmup=0.0).warmup == 0.0
