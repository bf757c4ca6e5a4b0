"""The Accelerate adapter in one process; tests/integration has two."""

import json

import pytest
import torch
import torch.nn.functional as F
from plain_loop import DECAY, METHOD, TOTALS, a_tenth, assert_equal, kept, loader, network, sgd, train_plainly
from torch import nn

pytest.importorskip("accelerate", reason="Accelerate is not installed: pip install 'softprune[accelerate]'")

from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState

from softprune.adapters.accelerate import STATE_FILE, attach
from softprune.core.sparsify import sparsify
from softprune.goals.goal import Sparsity
from softprune.methods import STR, RigL
from softprune.ops import Exp

pytestmark = pytest.mark.filterwarnings("ignore::softprune.forecast.forecast.ForecastWarning")

EPOCHS = 6


@pytest.fixture(autouse=True)
def _fresh_accelerate():
    """Accelerate keeps its settings for the whole process."""
    _reset()
    yield
    _reset()


def _reset():
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


class Run:
    """A training with Accelerate that can be stopped after any epoch."""

    def __init__(self, *, method=METHOD, seed=0, clip=None, decay=DECAY, total=None, **settings):
        self.accelerator, self.clip = Accelerator(cpu=True, **settings), clip
        accumulate = self.accelerator.gradient_accumulation_steps
        steps = EPOCHS * -(-len(loader()) // accumulate)
        self.sparsifier = sparsify(network(seed), method, **(total or {}))
        optimizer, scheduler = sgd(self.sparsifier.param_groups(**decay), steps)
        prepared = self.accelerator.prepare(self.sparsifier.model, optimizer, scheduler, loader())
        self.model, self.optimizer, self.scheduler, self.loader = prepared
        attach(self.accelerator, self.sparsifier, self.optimizer, total_steps=steps, scheduler=self.scheduler)

    def train(self, epochs):
        weights = [p for g in self.optimizer.param_groups if g["name"] != "threshold" for p in g["params"]]
        for _ in range(epochs):
            for x, y in self.loader:
                with self.accelerator.accumulate(self.model):
                    self.accelerator.backward(F.cross_entropy(self.model(x), y))
                    if self.clip is not None and self.accelerator.sync_gradients:
                        self.accelerator.clip_grad_norm_(weights, self.clip)
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad()
        return self


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        pytest.param({}, {}, id="plain"),
        pytest.param({"gradient_accumulation_steps": 3}, {"accumulate": 3}, id="accumulation with a rest"),
        pytest.param({"clip": 0.05}, {"clip": 0.05}, id="clipping"),
        pytest.param({"mixed_precision": "bf16"}, {"half": True}, id="bf16"),
    ],
)
def test_it_trains_what_the_plain_loop_trains(settings, same):
    run = Run(**settings).train(EPOCHS)
    wanted = train_plainly(EPOCHS, **same)
    assert_equal(run.sparsifier.model.state_dict(), wanted.model.state_dict())
    assert run.sparsifier.step == run.sparsifier.total_steps == wanted.step
    assert dict(run.sparsifier.measure()) == dict(wanted.measure())
    assert run.sparsifier.diagnose() == wanted.diagnose()
    assert 0 < wanted.measure().overall < 1
    assert run.sparsifier.forecast == wanted.forecast


@pytest.mark.parametrize(("method", "total", "left"), TOTALS)
def test_goals_and_budgets_are_met_exactly(method, total, left):
    run = Run(method=method, total=total()).train(EPOCHS)
    wanted = train_plainly(EPOCHS, method=method, **total())
    assert kept(run.sparsifier) == left
    assert_equal(run.sparsifier.model.state_dict(), wanted.model.state_dict())
    assert dict(run.sparsifier.measure()) == dict(wanted.measure())


@pytest.mark.parametrize(
    ("method", "total"),
    [
        pytest.param(METHOD, lambda: {"goal": Sparsity(0.9)}, id="goal"),
        pytest.param(RigL(every=4), lambda: {"budget": a_tenth()}, id="rigl"),
    ],
)
def test_a_loaded_state_approaches_its_goal_like_the_saved_one(method, total, tmp_path):
    run = Run(method=method, total=total()).train(2)
    run.accelerator.save_state(tmp_path)
    run.train(4)
    other = Run(method=method, total=total(), seed=1)
    other.accelerator.load_state(tmp_path)
    assert_equal(other.train(4).sparsifier.model.state_dict(), run.sparsifier.model.state_dict())
    assert kept(other.sparsifier) == 237


@pytest.mark.parametrize("method", [METHOD, STR(s_init=-3.0, g=Exp(k="auto"))], ids=["sigmoid", "scaled exp"])
@pytest.mark.parametrize("frozen", [None, "support", "budget"])
def test_a_loaded_state_goes_on_like_the_saved_one(method, frozen, tmp_path):
    run = Run(method=method).train(3)
    if frozen:
        run.sparsifier.freeze(frozen)
    run.accelerator.save_state(tmp_path)
    run.train(3)
    # Other weights to start with: nothing may depend on them.
    other = Run(method=method, seed=1)
    other.accelerator.load_state(tmp_path)
    assert other.sparsifier.step == 24
    other.train(3)
    assert_equal(other.sparsifier.model.state_dict(), run.sparsifier.model.state_dict())
    assert other.sparsifier.step == EPOCHS * 8
    assert 0 < other.sparsifier.measure().overall < 1


def test_the_state_is_plain_json_and_nothing_of_it_is_pickled(tmp_path):
    run = Run().train(1)
    run.accelerator.save_state(tmp_path)
    assert json.loads((tmp_path / STATE_FILE).read_text()) == run.sparsifier.state_dict()
    assert not list(tmp_path.glob("custom_checkpoint_*"))


def test_a_folder_without_our_file_and_one_of_another_method_are_refused(tmp_path):
    run = Run().train(1)
    run.accelerator.save_state(tmp_path / "ours")
    before = {name: t.clone() for name, t in run.sparsifier.model.state_dict().items()}
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=f"has no {STATE_FILE}"):
        run.accelerator.load_state(tmp_path / "empty")
    with pytest.raises(ValueError, match="sparsified with"):
        Run(method=STR(s_init=-5.0)).accelerator.load_state(tmp_path / "ours")
    (tmp_path / "ours" / STATE_FILE).write_text('{"format": ')
    with pytest.raises(ValueError, match="not valid JSON"):
        run.accelerator.load_state(tmp_path / "ours")
    assert_equal(run.sparsifier.model.state_dict(), before)


def test_baking_the_prepared_model_gives_a_plain_one():
    run = Run().train(EPOCHS)
    expected = run.sparsifier.measure()
    plain = run.sparsifier.bake()
    assert type(plain[1]) is nn.Linear
    assert list(plain.state_dict()) == list(network().state_dict())
    assert float((plain[1].weight != 0).double().mean()) == expected["1.weight"] < 1


def test_an_optimizer_without_thresholds_gets_them_with_their_decay():
    accelerator, model = Accelerator(cpu=True), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparsifier = sparsify(model, METHOD)
    model, optimizer = accelerator.prepare(model, optimizer)
    attach(accelerator, sparsifier, optimizer, total_steps=8, threshold_decay=0.5)
    assert [(g["weight_decay"], len(g["params"])) for g in optimizer.param_groups] == [(0.0, 4), (0.5, 2)]


def test_thresholds_without_decay_are_refused():
    accelerator, sparsifier = Accelerator(cpu=True), sparsify(network(), METHOD)
    optimizer = accelerator.prepare(torch.optim.SGD(sparsifier.model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="s would never move"):
        attach(accelerator, sparsifier, optimizer, total_steps=8)
    assert not accelerator._save_model_state_pre_hook
