"""Measuring a table: whose time is whose, how sums become calls, and what is refused. Nothing here judges a time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from softprune.budget.latency import LatencyTable
from softprune.deploy.bench.latency import Effort, Sighting, calibrate, measure_latency, subject
from softprune.deploy.engine.library import library

SHORT = Effort(rounds=2, repeats=1, seconds=0.001, tune=False)
needs_kernels = pytest.mark.skipif(library() is None, reason="no compiled kernels")


class Branches(nn.Module):
    """A residual block, a pool, one layer used at two places, and tied weights."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.block = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)})
        self.head["b"].weight = self.head["a"].weight

    def forward(self, x):
        x = self.stem(x)
        x = torch.relu(x + self.block(x))
        x = nn.functional.max_pool2d(self.block(x), 2).mean((2, 3))
        return self.head["b"](torch.relu(self.head["a"](x)))


@needs_kernels
def test_every_tensor_gets_the_time_of_its_layer_and_the_network_stays_as_it_was():
    torch.manual_seed(0)
    model = Branches()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    told = []
    table = measure_latency(
        model, torch.zeros(1, 3, 9, 9), densities=(0.1, 0.5, 1.0), batch=2, effort=SHORT, progress=told.append
    )
    assert [layer.name for layer in table.layers] == ["stem.0.weight", "block.weight", "head.a.weight"]
    assert [layer.shape for layer in table.layers] == [(8, 3, 3, 3), (8, 8, 3, 3), (8, 8)]
    assert all(s > 0 for layer in table.layers for s in layer.seconds)
    assert table.fixed > 0 and table.batch == 2 and table.threads == 1 and table.layers[0].densities == (0.1, 0.5, 1.0)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items()) and model.training
    assert told[0].startswith("density 0.1") and told[-1] == "timing: round 2 of 2"
    assert LatencyTable.from_dict(table.to_dict()) == table


@needs_kernels
def test_a_bare_layer_and_chosen_tensors():
    table = measure_latency(nn.Linear(6, 4), torch.zeros(1, 6), densities=(0.5, 1.0), effort=SHORT)
    assert [layer.name for layer in table.layers] == ["weight"]
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    chosen = measure_latency(net, torch.zeros(1, 6), names=["2.weight"], densities=(0.5, 1.0), effort=SHORT)
    assert [layer.name for layer in chosen.layers] == ["2.weight"]


@needs_kernels
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"densities": (0.5,)}, "two or more that rise"),
        ({"densities": (0.5, 0.1)}, "two or more that rise"),
        ({"densities": (0.0, 0.1)}, "two or more that rise"),
        ({"densities": (0.5, 1.5)}, "two or more that rise"),
        ({"threads": 0}, "threads is 0, must be 1 to 256"),
        ({"batch": 0}, "batch is 0, must be 1 to 4096"),
        ({"names": ["9.weight"]}, "no parameter 9.weight"),
        ({"names": ["1.weight"]}, "no step of the engine belongs to 1.weight"),
    ],
)
def test_refusals(more, words):
    net = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    net[1].weight = nn.Parameter(torch.ones(4))
    if more.get("names") == ["1.weight"]:
        net = nn.Sequential(nn.Linear(6, 4), nn.Sequential(nn.Identity()), nn.Linear(4, 2))
        net[1].weight = nn.Parameter(torch.ones(4, 4))  # belongs to a module that computes nothing
    with pytest.raises(ValueError, match=words):
        measure_latency(net, torch.zeros(1, 6), effort=SHORT, **more)


def test_without_kernels_it_says_how_to_get_them(monkeypatch):
    monkeypatch.setattr("softprune.deploy.bench.latency.library", lambda: None)
    with pytest.raises(ImportError, match=r"softprune\.deploy\.engine\.build"):
        measure_latency(nn.Linear(2, 2), torch.zeros(1, 2))


times = st.floats(1e-6, 1e-2)


@given(st.lists(st.tuples(times, times, times, st.floats(0.3, 3.0)), min_size=2, max_size=5))
def test_calibrated_times_add_up_to_the_calls(measured):
    sightings = [Sighting({"a": a, "b": b}, others, factor * (a + b + others)) for a, b, others, factor in measured]
    fixed, found = calibrate(sightings)
    assert fixed >= min(s.others for s in sightings)
    for number, seen in enumerate(sightings):
        a, b = found["a"][number], found["b"][number]
        assert a * seen.layers["b"] == pytest.approx(b * seen.layers["a"])  # in proportion
        assert a > 0 and b > 0
        if seen.call - fixed > 0.06 * (seen.layers["a"] + seen.layers["b"]):
            assert fixed + a + b == pytest.approx(seen.call)


def test_the_call_beyond_its_steps_is_fixed():
    found = calibrate([Sighting({"a": 10.0}, 3.0, 20.0), Sighting({"a": 30.0}, 4.0, 40.0)])
    assert found == (10.0, {"a": (10.0, 30.0)})  # 3 of other steps, and 7 that every call takes beyond its steps


def test_subjects():
    assert subject("digits")[1].shape == subject("zoo:digits/dense")[1].shape == (1, 1, 8, 8)
    assert subject("resnet20", shape="1,3,16,16")[1].shape == (1, 3, 16, 16)
    assert subject("zoo:resnet20/uniform-80", size=24)[1].shape == (1, 3, 24, 24)
    for where, more, words in (
        ("model.spx", {}, "several densities: name it"),
        ("digits", {"size": 5}, "for networks of the zoo"),
        ("nothing", {}, "nothing"),
    ):
        with pytest.raises(ValueError, match=words):
            subject(where, **more)
