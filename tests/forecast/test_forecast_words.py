"""The forecast that attach() makes: right for the run, and loud where the run would come to nothing."""

import inspect
import warnings

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR

from softprune.core.sparsify import sparsify
from softprune.forecast.forecast import ForecastWarning
from softprune.methods import STR
from softprune.ops import Custom

pytestmark = pytest.mark.filterwarnings("ignore::softprune.forecast.forecast.ForecastWarning")


def _net():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def _step(model, optimizer):
    model.zero_grad()
    model(torch.randn(16, 4)).square().mean().backward()
    optimizer.step()


def test_the_forecast_follows_the_scheduler():
    model = _net()
    sparsifier = sparsify(model, STR(s_init=-100.0))
    optimizer = SGD(sparsifier.param_groups(weight_decay=0.1), lr=0.1, momentum=0.9)
    scheduler = LambdaLR(optimizer, lambda n: 1.0 if n < 20 else 0.0)
    sparsifier.attach(optimizer, total_steps=200, scheduler=scheduler, steps_per_scheduler_step=2)
    # The learning rate is 0.1 during 20 scheduler steps of 2 optimizer steps each.
    assert pytest.approx(40 * 0.1 / (1 - 0.9)) == sparsifier.forecast.K
    assert sparsifier.forecast.steps == 200
    assert sparsifier.forecast.s_init == -100.0


def test_a_run_that_is_too_short_is_warned_about_in_the_callers_name():
    model = _net()
    sparsifier = sparsify(model, STR(s_init=-3200.0))
    optimizer = SGD(sparsifier.param_groups(weight_decay=2.25e-5), lr=0.1, momentum=0.9)
    with pytest.warns(ForecastWarning, match="no sparsity: s goes from -3200") as caught:
        sparsifier.attach(optimizer, total_steps=1000)
    assert sparsifier.forecast.onset_step is None
    assert caught[0].filename == __file__
    assert caught[0].lineno == inspect.currentframe().f_lineno - 3


def test_adam_with_coupled_decay_is_warned_about():
    model = _net()
    sparsifier = sparsify(model, STR(s_init=-3200.0))
    optimizer = Adam(sparsifier.param_groups(weight_decay=1e-2), lr=1e-2)
    with pytest.warns(ForecastWarning, match="Adam with coupled decay"):
        sparsifier.attach(optimizer, total_steps=1000)


def test_a_sound_plan_brings_no_warning():
    model = _net()
    sparsifier = sparsify(model, STR(s_init=-150.0))
    optimizer = SGD(sparsifier.param_groups(weight_decay=1e-4, threshold_decay=8e-3), lr=0.1, momentum=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sparsifier.attach(optimizer, total_steps=1000)
    assert 0.2 < sparsifier.forecast.onset < 0.5


def test_a_warning_turned_into_an_error_leaves_everything_as_it_was():
    model = _net()
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=1e-6)
    sparsifier = sparsify(model, STR())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ForecastWarning, match="no sparsity"):
            sparsifier.attach(optimizer, total_steps=100)
    assert len(optimizer.param_groups[0]["params"]) == 6
    assert sparsifier.forecast is None
    sparsifier.attach(optimizer, total_steps=100)
    assert len(optimizer.param_groups[0]["params"]) == 8


def test_a_run_that_is_over_has_no_forecast():
    model = _net()
    sparsifier = sparsify(model, STR(s_init=-8.0))
    sparsifier.load_state_dict({**sparsifier.state_dict(), "step": 100})
    optimizer = sparsifier.attach(SGD(sparsifier.param_groups(weight_decay=0.1), lr=0.1), total_steps=100)
    assert sparsifier.forecast is None
    _step(model, optimizer)
    assert sparsifier.step == 101


def test_a_g_of_ones_own_that_sets_in_above_zero_has_no_forecast():
    """The forecast is about the way of s up to a value below 0; elsewhere it has nothing to say."""

    def f(s):
        return torch.sigmoid(s - 15.0)

    def f_inverse(alpha):
        return torch.logit(alpha) + 15.0

    sparsifier = sparsify(_net(), STR(s_init=-3.0, g=Custom(f=f, f_inverse=f_inverse, s_low=-5.0, s_high=20.0)))
    optimizer = SGD(sparsifier.param_groups(weight_decay=0.1), lr=0.1)
    sparsifier.attach(optimizer, total_steps=100)
    assert sparsifier.forecast is None


def test_a_resumed_run_is_forecast_from_where_it_is_and_not_scolded():
    model = _net()
    sparsifier = sparsify(model, STR(s_init=-8.0))
    sparsifier.load_state_dict({**sparsifier.state_dict(), "step": 60})
    optimizer = SGD(sparsifier.param_groups(weight_decay=0.1), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sparsifier.attach(optimizer, total_steps=100)
    assert sparsifier.forecast.steps == 40
    _step(model, optimizer)
    assert sparsifier.step == 61
