"""Copies of a managed model: deep ones, averages, pickles, and those sent to other processes."""

import copy
import io
import pickle

import pytest
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from softprune.core.bake import bake, managed_targets
from softprune.core.sparsify import sparsify
from softprune.methods import STR
from softprune.ops import Exp

pytestmark = pytest.mark.filterwarnings("ignore::softprune.forecast.forecast.ForecastWarning")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 6, num_layers=2, bidirectional=True)
        self.project = nn.Linear(12, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.project(self.lstm(self.embedding(tokens))[0]))


def _conv():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3))


def _images(count=8):
    return torch.randn(count, 1, 6, 6)


def _tokens():
    return torch.randint(11, (5, 3))


MODELS = [pytest.param(_conv, _images, id="conv"), pytest.param(Recurrent, _tokens, id="recurrent")]
METHODS = [
    pytest.param(STR(s_init=-2.0), id="tensor"),
    pytest.param(STR(s_init=-4.0, granularity="global", g=Exp()), id="global"),
    pytest.param(STR(s_init=-2.0, granularity="filter"), id="filter"),
]


def _trained(build, inputs, method):
    """A managed model after a few steps, and its sparsifier."""
    model = build()
    sparsifier = sparsify(model, method)
    groups = sparsifier.param_groups(weight_decay=1e-3, threshold_decay=0.05)
    optimizer = sparsifier.attach(SGD(groups, lr=0.05, momentum=0.9), total_steps=10)
    for _ in range(3):
        optimizer.zero_grad()
        model(inputs()).square().mean().backward()
        optimizer.step()
    return model.eval(), sparsifier, optimizer


def _twins(model, twin):
    """Both models have the same keys, the same values and the same sharing, and no tensor in common."""
    ours, theirs = model.state_dict(), twin.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)
    pointers = {t.data_ptr() for t in ours.values()}
    assert not pointers & {t.data_ptr() for t in theirs.values()}
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in twin.named_parameters()]
    assert [type(m) for m in model.modules()] == [type(m) for m in twin.modules()]


def _independent(model, twin, x):
    """Baking one leaves the other managed and its output as it was, in either order."""
    expected = model(x)
    assert torch.equal(twin(x), expected)
    copies = [(copy.deepcopy(model), copy.deepcopy(twin)), (copy.deepcopy(twin), copy.deepcopy(model))]
    for baked, kept in copies:
        bake(baked)
        assert torch.equal(baked(x), expected)
        assert not managed_targets(baked)
        assert managed_targets(kept)
        assert torch.equal(kept(x), expected)
        out = kept(x)
        out.square().mean().backward()
        assert all(t.raw.grad is not None for t in managed_targets(kept))
        assert all(t.transform.s.grad is not None for t in managed_targets(kept))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("build", "inputs"), MODELS)
def test_a_deep_copy_is_a_twin_of_its_own(build, inputs, method):
    model, sparsifier, optimizer = _trained(build, inputs, method)
    x = inputs()
    twin = copy.deepcopy(model)
    _twins(model, twin)
    _independent(model, twin, x)
    expected = twin(x).detach().clone()
    model.train()
    optimizer.zero_grad()
    model(inputs()).square().mean().backward()
    optimizer.step()
    model.eval()
    assert torch.equal(twin(x), expected)
    assert not torch.equal(model(x), expected)
    assert sparsifier.step == 4


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("build", "inputs"), MODELS)
def test_a_pickled_model_comes_back(build, inputs, method):
    model, _, _ = _trained(build, inputs, method)
    twin = pickle.loads(pickle.dumps(model))
    _twins(model, twin)
    _independent(model, twin, inputs())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("build", "inputs"), MODELS)
def test_a_model_saved_whole_comes_back(build, inputs, method):
    model, _, _ = _trained(build, inputs, method)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    twin = torch.load(file, weights_only=False)
    _twins(model, twin)
    _independent(model, twin, inputs())


def test_sharing_survives_copies():
    model, _, _ = _trained(Recurrent, _tokens, STR(s_init=-2.0, granularity="global"))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.head.parametrizations.weight.original is twin.embedding.parametrizations.weight.original
        assert twin.head.parametrizations.weight[0] is twin.embedding.parametrizations.weight[0]
        assert len({id(t.transform.s) for t in managed_targets(twin)}) == 1


def test_a_copied_lstm_that_has_run_uses_the_weights_it_has_now():
    """Recurrent layers keep a list of their weights: in a copy it must not be that of the original."""
    model, _, _ = _trained(Recurrent, _tokens, STR(s_init=-2.0))
    x = _tokens()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for target in managed_targets(model):
            target.raw.zero_()
    zeroed = model(x)
    assert not torch.equal(twin(x), zeroed)
    with torch.no_grad():
        for target in managed_targets(twin):
            target.raw.zero_()
    assert torch.equal(twin(x), zeroed)


# averages


def test_an_average_averages_the_raw_weights_and_s():
    model, _, optimizer = _trained(_conv, _images, STR(s_init=-3.0))
    model.train()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=False)
    ema.update_parameters(model)  # the first update copies
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(4):
        optimizer.zero_grad()
        model(_images()).square().mean().backward()
        optimizer.step()
        ema.update_parameters(model)
        for name, p in model.named_parameters():
            expected[name].lerp_(p.detach(), 0.5)
    for name, p in ema.module.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], rtol=1e-6, atol=1e-7)
    # The average is thresholded after averaging: its zeros are those of sign(w) relu(|w| - g(s)) of the means.
    raw = expected["0.parametrizations.weight.original"]
    alpha = torch.sigmoid(expected["0.parametrizations.weight.0.s"])
    torch.testing.assert_close(ema.module[0].weight, raw.sign() * F.relu(raw.abs() - alpha), rtol=1e-5, atol=1e-7)
    assert 0 < ema.module[0].weight.count_nonzero() < raw.numel()


def test_baking_the_average_leaves_the_live_model_managed():
    model, sparsifier, optimizer = _trained(_conv, _images, STR(s_init=-3.0))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        model(_images()).square().mean().backward()
        optimizer.step()
        ema.update_parameters(model)
    x = _images()
    ema.eval()
    expected = ema(x)
    baked = bake(ema.module)
    assert torch.equal(baked(x), expected)
    assert type(baked[0]) is nn.Conv2d
    assert list(baked.state_dict()) == list(_conv().state_dict())
    before = sparsifier.measure()
    optimizer.zero_grad()
    model(_images()).square().mean().backward()
    optimizer.step()
    assert sparsifier.step == 7
    assert set(before.densities) == {"0.weight", "4.weight"}
    assert model[0].parametrizations.weight[0].s.grad is not None


# other processes


def _answer(given, queue):
    torch.set_num_threads(1)
    with torch.no_grad():
        queue.put([(model(x).numpy().tobytes(), [t.name for t in managed_targets(model)]) for model, x in given])


@pytest.mark.slow
def test_a_spawned_process_gets_the_managed_models():
    parts = [model.values[:2] for model in MODELS]
    given = [(_trained(build, inputs, STR(s_init=-2.0))[0], inputs()) for build, inputs in parts]
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=_answer, args=(given, queue))
    process.start()
    try:
        process.join(120)
        assert process.exitcode == 0
        answers = queue.get()
    finally:
        process.kill()
    assert len(answers) == len(MODELS)
    for (model, x), (answer, names) in zip(given, answers, strict=True):
        assert names == [t.name for t in managed_targets(model)]
        with torch.no_grad():  # as there: torch's recurrent layers take another kernel for inference
            assert answer == model(x).numpy().tobytes()
