"""Two processes under DistributedDataParallel: one network, the same on both, as if one process had trained it."""

import pytest
import torch
from launch import SEVERAL_PROCESSES, WORKERS, differing, part, tensors_of

from warm import run_on_two

pytestmark = SEVERAL_PROCESSES


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of the two processes found."""
    folder = tmp_path_factory.mktemp("ddp")
    run_on_two(WORKERS / "ddp.py", folder)
    return tensors_of(folder)


def test_both_processes_agree_on_everything_bit_for_bit(ranks):
    assert differing(*ranks) == []


@pytest.mark.parametrize("granularity", ["tensor", "filter", "global"])
def test_two_processes_train_like_one_on_the_whole_batch(ranks, granularity):
    together, alone = part(ranks[0], f"ddp {granularity}"), part(ranks[0], f"alone {granularity}")
    assert set(together) == set(alone)
    assert together["step"] == alone["step"] == 20
    for key, t in together.items():
        # Only the order of additions differs.
        torch.testing.assert_close(t, alone[key], rtol=1e-9, atol=1e-12, msg=lambda m, key=key: f"{key}: {m}")
    densities = [float(t) for key, t in together.items() if key.startswith("density/")]
    assert all(0 < d < 1 for d in densities)


def test_the_least_number_of_weights_is_kept(ranks):
    found = part(ranks[0], "min_keep")
    for name, size in {"embed": 17 * 6, "blocks.0.linear": 17 * 17, "blocks.1.linear": 17 * 17, "head": 5 * 17}.items():
        assert round(float(found[f"density/{name}.weight"]) * size) >= 3
    assert min(float(t) for key, t in found.items() if key.startswith("density/")) < 0.2


def test_collapse_is_seen_and_stops_nobody(ranks):
    found = part(ranks[0], "collapse")
    assert found["step"] == 120
    assert found["warnings"] > 0
    assert any(float(t) == 0 for key, t in found.items() if key.startswith("density/"))


@pytest.mark.parametrize("name", ["tensor", "filter", "gmp", "ties"])
def test_a_goal_is_exact_on_both_and_like_on_one(ranks, name):
    together, alone = part(ranks[0], f"goal {name} together"), part(ranks[0], f"goal {name} alone")
    sizes = {"embed": 17 * 6, "blocks.0.linear": 17 * 17, "blocks.1.linear": 17 * 17, "head": 5 * 17}
    total = sum(sizes.values())
    for found in (together, alone):
        kept = sum(round(float(found[f"density/{layer}.weight"]) * size) for layer, size in sizes.items())
        assert total - kept == round(0.9 * total)
    for key in (key for key in together if key.endswith((".s", ".original"))):
        # Only the order of additions differs.
        torch.testing.assert_close(
            together[key], alone[key], rtol=1e-7, atol=1e-10, msg=lambda m, key=key: f"{key}: {m}"
        )


def test_a_fixed_support_keeps_its_zeros_on_both(ranks):
    for results in ranks:
        weights, zeros = part(results, "support"), part(results, "support zeros")
        assert set(zeros) == {"blocks.0.linear.weight", "blocks.1.linear.weight"}
        for name, mask in zeros.items():
            assert 0 < mask.sum() < mask.numel()
            assert torch.equal(weights[name] == 0, mask)


@pytest.mark.parametrize("what", ["thresholds", "support", "budget"])
def test_training_goes_on_after_freezing_in_a_new_wrapper(ranks, what):
    found = part(ranks[0], f"freeze {what}")
    assert found["step"] == 20
    now = {k.removeprefix("density/"): float(t) for k, t in found.items() if k.startswith("density/")}
    before = {k.removeprefix("density before/"): float(t) for k, t in found.items() if k.startswith("density before/")}
    assert all(0 < d < 1 for d in before.values())
    if what != "thresholds":
        assert now == before
