"""Runs through torch.compile, with its real back-end."""

import os
import signal

import pytest
import torch
import torch._dynamo
from logged import config
from torch._dynamo.utils import counters

from softprune.core.state_file import read_state
from softprune.train.observer import Silent
from softprune.train.run import resume, train

pytestmark = pytest.mark.slow

# Six steps an epoch, and the last batch is smaller: another shape to compile for, as in the test data.
CHANGES = ["model=own_parts:tiny_cnn", "model.args={}", "data.subset=330"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


class Graphs(Silent):
    """How many graphs were compiled by the end of each epoch; may stop the run after a step."""

    def __init__(self, stop=None):
        torch._dynamo.reset()
        counters.clear()
        self.by_epoch, self._stop = [], stop

    def on_step(self, progress):
        if progress.step == self._stop:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_metrics(self, metrics):
        if metrics["kind"] == "epoch":
            self.by_epoch.append(counters["stats"]["unique_graphs"])


@pytest.fixture(scope="module")
def whole(folder):
    """A compiled run: where it is, and how many graphs it took."""
    torch.set_num_threads(1)
    graphs = Graphs()
    train(config(*CHANGES, "compile=true"), folder / "whole", observer=graphs)
    return folder / "whole", graphs.by_epoch


def final(folder):
    return read_state(sorted((folder / "checkpoints").glob("step-*"))[-1])[0]


def assert_alike(one, other):
    """The same keys, and values that differ by no more than compiled and plain kernels do."""
    assert one.keys() == other.keys()
    for name, t in one.items():
        torch.testing.assert_close(other[name], t, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


def test_the_result_is_that_of_a_plain_run(whole, folder):
    train(config(*CHANGES), folder / "plain")
    assert_alike(final(whole[0]), final(folder / "plain"))
    assert not [name for name in final(whole[0]) if "_orig_mod" in name]


def test_nothing_is_compiled_after_the_first_epoch(whole):
    _, by_epoch = whole
    assert len(by_epoch) == 3
    assert 1 < by_epoch[0] == by_epoch[-1]


def test_a_run_that_was_stopped_goes_on(whole, folder):
    given = config(*CHANGES, "compile=true")
    assert not train(given, folder / "parts", observer=Graphs(stop=8)).finished
    assert resume(folder / "parts", observer=Graphs(), trust=True).finished
    # Which shapes are met first may decide on the kernels, so not bit for bit.
    assert_alike(final(whole[0]), final(folder / "parts"))
