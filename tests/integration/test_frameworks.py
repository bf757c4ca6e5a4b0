"""Two processes in the loops of Accelerate and Lightning: the same network on both, as if one had trained it."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from launch import torchrun
from safetensors.torch import load_file

WORKER = Path(__file__).parent / "workers" / "frameworks.py"
INSTALLED = all(find_spec(package) for package in ("accelerate", "lightning"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch was built without gloo"),
    pytest.mark.skipif(not INSTALLED, reason="needs both: pip install 'softprune[accelerate,lightning]'"),
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of the two processes found."""
    folder = tmp_path_factory.mktemp("frameworks")
    torchrun(2, WORKER, folder)
    return [load_file(folder / f"{rank}.safetensors") for rank in (0, 1)]


def _part(results, name):
    found = {key.removeprefix(f"{name}/"): t for key, t in results.items() if key.startswith(f"{name}/")}
    assert found
    return found


def test_both_processes_agree_on_everything_bit_for_bit(ranks):
    first, second = ranks
    assert set(first) == set(second)
    for key, t in first.items():
        torch.testing.assert_close(second[key], t, rtol=0, atol=0, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("loop", ["accelerate", "lightning"])
def test_two_processes_train_like_one_on_the_batches_of_both(ranks, loop):
    together, alone = _part(ranks[0], loop), _part(ranks[0], "alone")
    assert set(together) == set(alone)
    for key, t in together.items():
        # Only the order of additions differs.
        torch.testing.assert_close(t, alone[key], rtol=1e-9, atol=1e-12, msg=lambda m, key=key: f"{key}: {m}")
    densities = [float(t) for key, t in together.items() if key.startswith("density/")]
    assert all(0 < d < 1 for d in densities)
    assert together["step"].tolist() == [16, 16]


def test_a_loaded_state_goes_on_like_the_saved_one(ranks):
    for results in ranks:
        whole, resumed = _part(results, "accelerate"), _part(results, "accelerate resumed")
        for key, t in whole.items():
            torch.testing.assert_close(resumed[key], t, rtol=0, atol=0, msg=lambda m, key=key: f"{key}: {m}")
