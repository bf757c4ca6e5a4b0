"""Seeds and threads: every test starts from the same random state on one thread."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_start():
    torch.manual_seed(20200601)
    torch.set_num_threads(1)
    yield
