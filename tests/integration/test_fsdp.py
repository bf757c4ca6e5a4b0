"""Two processes under FSDP2: sharded weights, one network, as if one process had trained it."""

import json

import pytest
import torch
from launch import SEVERAL_PROCESSES, WORKERS, differing, part, tensors_of

from warm import run_on_two

pytestmark = SEVERAL_PROCESSES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fsdp")
    run_on_two(WORKERS / "fsdp.py", folder)
    return folder


@pytest.fixture(scope="module")
def ranks(folder):
    """What each of the two processes found."""
    return tensors_of(folder)


def test_both_processes_agree_on_everything_bit_for_bit(ranks):
    assert differing(*ranks) == []


@pytest.mark.parametrize("granularity", ["tensor", "filter", "weight", "global"])
def test_two_processes_train_like_one_on_the_whole_batch(ranks, granularity):
    """In float64 only the order of additions differs, and no weight is that close to its threshold."""
    together, alone = part(ranks[0], f"fsdp {granularity}"), part(ranks[0], f"alone {granularity}")
    assert together["step"] == alone["step"] == 20
    assert set(alone) <= set(together)
    for key, t in alone.items():
        torch.testing.assert_close(
            together[key], t, rtol=1e-8, atol=1e-11, equal_nan=True, msg=lambda m, key=key: f"{key}: {m}"
        )
    assert all(0 < float(t) < 1 for key, t in alone.items() if key.startswith("density/"))
    assert all(torch.isfinite(t) for key, t in alone.items() if key.startswith("diagnosis P/"))


@pytest.mark.parametrize("granularity", ["tensor", "filter", "weight"])
def test_what_was_saved_loads_into_a_model_that_is_not_sharded(ranks, granularity):
    found = part(ranks[0], f"fsdp {granularity}")
    assert torch.equal(found["output of the loaded"], found["output"])
    assert torch.equal(found["output of the baked"], found["output"])


def test_the_saved_folder_is_one_and_whole(folder):
    for granularity in ("tensor", "filter", "weight"):
        names = sorted(path.name for path in (folder / f"saved {granularity}").iterdir())
        assert names == ["budget.json", "state.safetensors"]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("bake", "not possible while embed.weight is sharded by FSDP2: gather"),
        ("remove", "not possible while embed.weight is sharded by FSDP2: gather"),
        ("support", "freeze('support') is not possible while embed.weight is sharded"),
        ("budget", "freeze('budget') is not possible while embed.weight is sharded"),
        ("late", "embed.weight is sharded already: sparsify first, then call fully_shard"),
        ("min_keep", "is not possible while embed.weight is sharded by FSDP2: it looks at whole weights"),
        ("goal", "training to a goal is not possible while embed.weight is sharded by FSDP2"),
        ("global", "fully_shard or to_empty has split a shared threshold (1 became 3)"),
        ("tied", "fully_shard or to_empty has split 0.0.weight into 2 parameters"),
    ],
)
def test_what_a_shard_cannot_do_is_refused_by_name(folder, what, words):
    for rank in (0, 1):
        assert words in json.loads((folder / f"{rank}.json").read_text())[what]


def test_plain_and_fused_optimizers_of_all_parameters_train_alike(ranks):
    plain, fused = part(ranks[0], "adamw plain"), part(ranks[0], "adamw fused")
    assert set(plain) == set(fused)
    for key, t in plain.items():
        torch.testing.assert_close(fused[key], t, rtol=1e-8, atol=1e-11, msg=lambda m, key=key: f"{key}: {m}")
    assert plain["step"] == 20


def test_collapse_neither_blocks_nor_hides(ranks):
    """The watch is off while sharded (a look would gather every step); check() finds what has died."""
    found = part(ranks[0], "collapse")
    assert found["step"] == 120
    assert found["warnings during training"] == 0
    dead = [key for key, t in found.items() if key.startswith("density/") and float(t) == 0]
    assert dead
    assert found["found"] >= len(dead)


def test_bfloat16_gathering_trains_float32_thresholds(ranks):
    found = part(ranks[0], "bf16")
    assert found["step"] == 20
    thresholds = [float(t) for key, t in found.items() if key.startswith("diagnosis s/")]
    assert len(thresholds) == 4
    assert all(s > -4.0 for s in thresholds)
    assert len(set(thresholds)) == 4
    assert all(0 < float(t) < 1 for key, t in found.items() if key.startswith("density/"))


def test_thresholds_can_be_frozen_while_sharded(ranks):
    assert part(ranks[0], "frozen thresholds")["step"] == 10


def test_a_budget_frozen_before_sharding_is_held(ranks):
    before, after, used = (part(ranks[0], f"held {when}") for when in ("before", "after", "used"))
    assert all(0 < float(t) < 1 for t in before.values())
    for key, t in before.items():
        assert after[key] == t
        # Step 20 is one at which thresholds follow, so what is used is what is held.
        assert float(used[key]) == pytest.approx(float(t), abs=1e-6)
