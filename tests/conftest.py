"""Seeds, threads and a home: every test starts from the same random state on one thread, and leaves nothing behind."""

import os
import random
import shutil
import tempfile
from itertools import groupby
from pathlib import Path

import hypothesis
import pytest
import torch

# How long an example takes depends on what else the machine does, and is no property of the code.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

# Set for the processes of pytest-xdist, which inherit it, and for all that the tests start.
HOME = "SOFTPRUNE_TESTS_HOME"
# Where a library keeps something for a user, if not below HOME.
ELSEWHERE = (
    "HF_HOME", "MPLCONFIGDIR", "SOFTPRUNE_CACHE",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME",
)  # fmt: skip


def pytest_configure(config):
    """What is kept for a user, such as what tuning found or a compiler made, is kept as long as the tests run."""
    if HOME in os.environ:
        return
    tempfile.gettempdir()  # remembered: pytest's own folders stay where people look for them
    home = Path(tempfile.mkdtemp(prefix="softprune-tests-"))
    (home / "tmp").mkdir()
    for name in ELSEWHERE:
        os.environ.pop(name, None)
    os.environ |= {
        HOME: str(home),
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(home / "hypothesis"),
    }
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))


def pytest_addoption(parser):
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run files and their tests in random order")


def pytest_collection_modifyitems(config, items):
    """A test that needs another one to have run before it fails in some order."""
    seed = config.getoption("--shuffle")
    if seed is None:
        return
    dice = random.Random(seed)  # the same order in every process of pytest-xdist
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    for tests in files:
        dice.shuffle(tests)
    dice.shuffle(files)
    items[:] = [test for tests in files for test in tests]


@pytest.fixture(autouse=True)
def _same_start():
    torch.manual_seed(20200601)
    torch.set_num_threads(1)
    yield
