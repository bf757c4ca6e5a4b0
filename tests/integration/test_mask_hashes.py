"""Two processes, each of which decides for itself, end with one mask; for every method and every total it takes."""

import pytest
import torch
from launch import SEVERAL_PROCESSES, WORKERS, differing, tensors_of

from softprune.methods import from_config, method_names
from warm import run_on_two

pytestmark = SEVERAL_PROCESSES

CASES = [f"{name} {total}" for name in method_names() for total in from_config({"method": name}).accepts]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masks")
    run_on_two(WORKERS / "masks.py", folder)
    return tensors_of(folder)


@pytest.mark.parametrize("case", CASES)
def test_both_processes_have_one_mask(ranks, case):
    one, other = ({key: t for key, t in found.items() if key.startswith(f"{case}/")} for found in ranks)
    assert len(one) == 3 and differing(one, other) == []


def test_masks_have_moved(ranks):
    fixed = {case for case in CASES if torch.equal(ranks[0][f"{case}/before"], ranks[0][f"{case}/after"])}
    # These keep their mask by design; without a total the thresholds of a short training may prune nothing yet.
    assert fixed <= {"static budget", "keep-zeros none", "str none", "autosparse none", "vd none"}
