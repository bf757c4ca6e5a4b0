"""The Lightning callback: what Lightning trains is what the plain loop trains, and what it saves it continues."""

import logging
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from plain_loop import DECAY, METHOD, TOTALS, a_tenth, assert_equal, kept, loader, network, sgd, train_plainly
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed: pip install 'softprune[lightning]'")

from softprune import Units, constant  # noqa: E402
from softprune.adapters.lightning import SoftpruneCallback, sparsifier_of  # noqa: E402
from softprune.core.rule import Rule  # noqa: E402
from softprune.goals.goal import Params, Sparsity  # noqa: E402
from softprune.methods import STR, RigL  # noqa: E402
from softprune.ops import Exp  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::softprune.forecast.forecast.ForecastWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint need to be provided"),
    pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`"),
]

EPOCHS = 6


@pytest.fixture(autouse=True)
def _quiet():
    loggers = [logging.getLogger(f"lightning.{part}") for part in ("pytorch", "fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


class Classifier(pl.LightningModule):
    """The network of the plain loop, with an optimizer and scheduler by `configure`."""

    def __init__(self, configure=None, seed=0):
        super().__init__()
        self.net = network(seed)
        self.configure = configure or with_groups

    def forward(self, x):
        return self.net(x)

    def loss(self, batch):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    test_step = validation_step

    def configure_optimizers(self):
        return self.configure(self)


def with_groups(module):
    """Decay and scheduler as in the plain loop."""
    groups = sparsifier_of(module.trainer).param_groups(**DECAY)
    optimizer, scheduler = sgd(groups, module.trainer.estimated_stepping_batches)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def adamw(module):
    return torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.0)


def decayed(module):
    return torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=1e-3)


def trainer_with(*callbacks, folder, epochs=EPOCHS, **settings):
    settings = {"enable_checkpointing": False, "max_epochs": epochs, **settings}
    return pl.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=list(callbacks),
        **settings,
    )


def fit(callback, module, folder, *, ckpt_path=None, batch=32, **settings):
    trainer = trainer_with(callback, *settings.pop("callbacks", ()), folder=folder, **settings)
    trainer.fit(module, loader(batch), loader(), ckpt_path=ckpt_path)
    return trainer


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        pytest.param({}, {}, id="plain"),
        pytest.param({"accumulate_grad_batches": 3}, {"accumulate": 3}, id="accumulation with a rest"),
        pytest.param({"gradient_clip_val": 0.05}, {"clip": 0.05}, id="clipping"),
        pytest.param({"precision": "bf16-mixed"}, {"half": True}, id="bf16"),
    ],
)
def test_it_trains_what_the_plain_loop_trains(settings, same, tmp_path):
    callback, module = SoftpruneCallback(METHOD, submodule="net"), Classifier()
    trainer = fit(callback, module, tmp_path, **settings)
    wanted = train_plainly(EPOCHS, **same)
    assert_equal(module.net.state_dict(), wanted.model.state_dict())
    assert callback.sparsifier.step == callback.sparsifier.total_steps == wanted.step == trainer.global_step
    assert dict(callback.sparsifier.measure()) == dict(wanted.measure())
    assert callback.sparsifier.diagnose() == wanted.diagnose()
    assert 0 < wanted.measure().overall < 1
    assert callback.sparsifier.forecast == wanted.forecast


@pytest.mark.parametrize(("method", "total", "left"), TOTALS)
def test_goals_and_budgets_are_met_exactly(method, total, left, tmp_path):
    callback, module = SoftpruneCallback(method, submodule="net", **total()), Classifier()
    fit(callback, module, tmp_path)
    wanted = train_plainly(EPOCHS, method=method, **total())
    assert kept(callback.sparsifier) == left
    assert_equal(module.net.state_dict(), wanted.model.state_dict())
    assert dict(callback.sparsifier.measure()) == dict(wanted.measure())


@pytest.mark.parametrize(
    ("method", "total"),
    [
        pytest.param(METHOD, lambda: {"goal": Sparsity(0.9)}, id="goal"),
        pytest.param(RigL(every=4), lambda: {"budget": a_tenth()}, id="rigl"),
    ],
)
def test_a_resumed_run_approaches_its_goal_like_the_uninterrupted_one(method, total, tmp_path):
    every_epoch = pl.callbacks.ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    whole = Classifier()
    settings = {"callbacks": [every_epoch], "enable_checkpointing": True}
    fit(SoftpruneCallback(method, submodule="net", **total()), whole, tmp_path, **settings)
    callback, resumed = SoftpruneCallback(method, submodule="net", bake=True, **total()), Classifier(seed=1)
    fit(callback, resumed, tmp_path, ckpt_path=tmp_path / "epoch=1.ckpt")
    for layer in (1, 3):
        assert torch.equal(resumed.net[layer].weight, whole.net[layer].weight)
    assert sum(int(torch.count_nonzero(resumed.net[layer].weight)) for layer in (1, 3)) == 237


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"goal": Sparsity(0.9), "threshold_decay": 0.1}, "threshold_decay has no effect", id="goal"),
        pytest.param({"rules": [Rule("1", goal=Params(9))], "threshold_decay": 0.1}, "has no effect", id="rule"),
        pytest.param({"budget": a_tenth(), "threshold_decay": 0.1}, "has no effect", id="budget"),
        pytest.param({"threshold_decay": -1.0}, "threshold_decay must be a finite number", id="bad decay"),
    ],
)
def test_a_decay_that_cannot_work_is_refused_by_the_constructor(settings, message):
    with pytest.raises(ValueError, match=message):
        SoftpruneCallback(METHOD, **settings)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        pytest.param(METHOD, {"goal": 0.9}, r"did you mean Sparsity\(0.9\)", id="a goal that is a number"),
        pytest.param(METHOD, {"goal": Params(9), "budget": a_tenth()}, "give one", id="goal and budget"),
        pytest.param(RigL(), {"goal": Sparsity(0.9)}, "pass a budget", id="a method that needs a budget"),
        pytest.param(METHOD, {"goal": Sparsity(0.5), "units": Units.filter}, "pass example=", id="filters"),
        pytest.param(METHOD, {"schedule": constant()}, "for a goal or a budget", id="a schedule for nothing"),
    ],
)
def test_a_total_that_cannot_work_is_refused_and_the_model_stays_as_it_is(method, settings, message, tmp_path):
    module = Classifier()
    before = {name: t.clone() for name, t in module.state_dict().items()}
    with pytest.raises((TypeError, ValueError), match=message):
        fit(SoftpruneCallback(method, submodule="net", **settings), module, tmp_path)
    assert_equal(module.state_dict(), before)
    assert type(module.net[1]) is nn.Linear


def test_an_optimizer_over_all_parameters_gives_thresholds_the_decay_of_the_callback(tmp_path):
    callback, module = SoftpruneCallback(METHOD, submodule="net", threshold_decay=1.0), Classifier(adamw)
    trainer = fit(callback, module, tmp_path)
    decays = [(group["weight_decay"], len(group["params"])) for group in trainer.optimizers[0].param_groups]
    assert decays == [(0.0, 4), (1.0, 2)]
    wanted = train_plainly(
        EPOCHS,
        make=lambda groups, steps: (torch.optim.AdamW(groups, lr=1e-2), None),
        decay={"weight_decay": 0.0, "threshold_decay": 1.0},
    )
    assert_equal(module.net.state_dict(), wanted.model.state_dict())
    assert all(row.s > METHOD.s_init for row in callback.sparsifier.diagnose())


@pytest.mark.parametrize("method", [METHOD, STR(s_init=-3.0, g=Exp(k="auto"))], ids=["sigmoid", "scaled exp"])
def test_a_resumed_run_is_the_uninterrupted_one(method, tmp_path):
    every_epoch = pl.callbacks.ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    whole = Classifier()
    settings = {"callbacks": [every_epoch], "enable_checkpointing": True}
    fit(SoftpruneCallback(method), whole, tmp_path, **settings)
    # Other weights to start with: nothing may depend on them.
    callback, resumed = SoftpruneCallback(method), Classifier(seed=1)
    fit(callback, resumed, tmp_path, ckpt_path=tmp_path / "epoch=1.ckpt")
    assert_equal(resumed.state_dict(), whole.state_dict())
    assert callback.sparsifier.step == EPOCHS * 8
    assert callback.sparsifier.measure().overall > 0


def test_the_sparsest_checkpoint_is_kept_and_tested(tmp_path):
    sparsest = pl.callbacks.ModelCheckpoint(tmp_path, filename="{epoch}", monitor="sparsity", mode="max")
    callback, module = SoftpruneCallback(METHOD), Classifier()
    trainer = fit(callback, module, tmp_path, epochs=2, callbacks=[sparsest], enable_checkpointing=True)
    trained = {name: t.clone() for name, t in module.state_dict().items()}
    assert sparsest.best_model_path.endswith("epoch=1.ckpt")
    assert float(sparsest.best_model_score) == pytest.approx(callback.sparsifier.measure().overall)
    with torch.no_grad():
        module.net[1].bias.fill_(7.0)
    trainer.test(module, loader(), ckpt_path="best", verbose=False)
    assert_equal(module.state_dict(), trained)


def test_clipping_of_ones_own_leaves_thresholds_out_too(tmp_path):
    class Own(Classifier):
        def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
            nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.05)

    module = Own()
    trainer = fit(SoftpruneCallback(METHOD, submodule="net"), module, tmp_path)
    assert trainer.gradient_clip_val is None
    assert_equal(module.net.state_dict(), train_plainly(EPOCHS, clip=0.05).model.state_dict())


def test_a_checkpoint_holds_no_pickled_object(tmp_path):
    trainer = fit(SoftpruneCallback(METHOD), Classifier(), tmp_path, epochs=1)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert state["callbacks"]["SoftpruneCallback"]["step"] == 8


@pytest.mark.parametrize("method", [METHOD, STR(s_init=-3.0, g=Exp(k="auto"))], ids=["sigmoid", "scaled exp"])
def test_a_saved_model_is_tested_in_a_fresh_trainer(method, tmp_path):
    trained = Classifier()
    fit(SoftpruneCallback(method), trained, tmp_path).save_checkpoint(tmp_path / "last.ckpt")
    callback, fresh = SoftpruneCallback(method), Classifier(seed=1)
    trainer = trainer_with(callback, folder=tmp_path)
    (found,) = trainer.test(fresh, loader(), ckpt_path=tmp_path / "last.ckpt", verbose=False)
    assert_equal(fresh.state_dict(), trained.state_dict())
    assert torch.equal(fresh.net[1].weight, trained.net[1].weight)
    assert math.isfinite(found["val_loss"])
    assert dict(callback.sparsifier.bake().named_parameters()).keys() == dict(Classifier().named_parameters()).keys()


def test_sparsity_and_macs_are_logged_at_every_validation(tmp_path):
    seen = []

    class Watch(pl.Callback):
        def on_validation_end(self, trainer, pl_module):
            seen.append({k: float(v) for k, v in trainer.callback_metrics.items() if k in ("sparsity", "macs")})

    callback = SoftpruneCallback(METHOD, example=torch.zeros(1, 1, 8, 8))
    fit(callback, Classifier(), tmp_path, callbacks=[Watch()])
    last = callback.sparsifier.measure()
    assert len(seen) == EPOCHS + 1  # Lightning checks validation before it trains; nothing is logged there
    assert seen[0] == {}
    assert seen[-1] == {"sparsity": pytest.approx(last.overall, rel=1e-6), "macs": float(last.macs())}
    assert seen[1]["sparsity"] < seen[-1]["sparsity"]


def test_without_validation_it_is_logged_after_training_epochs(tmp_path):
    callback = SoftpruneCallback(METHOD)
    trainer = trainer_with(callback, folder=tmp_path, epochs=2)
    trainer.fit(Classifier(), loader())
    assert float(trainer.callback_metrics["sparsity"]) == pytest.approx(callback.sparsifier.measure().overall)


def test_bake_leaves_a_plain_module_with_zeros(tmp_path):
    module = Classifier()
    callback = SoftpruneCallback(METHOD, bake=True, skip=["net.3.weight"])
    trainer = fit(callback, module, tmp_path)
    assert type(module.net[1]) is nn.Linear
    assert list(module.state_dict()) == list(Classifier().state_dict())
    zeros = int((module.net[1].weight == 0).sum())
    assert 0 < zeros < module.net[1].weight.numel()
    assert not (module.net[3].weight == 0).any()
    # Using it goes on as with any other model, and does not sparsify it again.
    trainer.save_checkpoint(tmp_path / "baked.ckpt")
    trainer.test(module, loader(), verbose=False)
    assert int((module.net[1].weight == 0).sum()) == zeros
    module.configure = decayed
    trainer.fit_loop.max_epochs += 1
    trainer.fit(module, loader(), loader())
    assert type(module.net[1]) is nn.Linear
    assert trainer.global_step == (EPOCHS + 1) * 8


def test_fitting_again_goes_on(tmp_path):
    callback, module = SoftpruneCallback(METHOD, submodule="net", rules=[Rule("3", s_init=-7.0)]), Classifier()
    trainer = fit(callback, module, tmp_path, epochs=2)
    halfway = callback.sparsifier.measure().overall
    trainer.fit_loop.max_epochs = 4
    trainer.fit(module, loader(), loader())
    assert callback.sparsifier.step == callback.sparsifier.total_steps == 32
    assert callback.sparsifier.measure().overall > halfway


def test_the_learning_rate_finder_leaves_no_trace(tmp_path):
    callback, module = SoftpruneCallback(METHOD), Classifier()
    module.lr = 0.1
    trainer = trainer_with(callback, folder=tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        pl.tuner.Tuner(trainer).lr_find(module, loader(), num_training=10, update_attr=False)
    assert callback.sparsifier.step == 0
    trainer.fit(module, loader())
    assert_equal(module.net.state_dict(), train_plainly(EPOCHS).model.state_dict())


def test_manual_optimization_counts_rounds_of_all_optimizers(tmp_path):
    class Manual(Classifier):
        automatic_optimization = False

        def configure_optimizers(self):
            first = torch.optim.SGD(self.net[1].parameters(), lr=0.1, weight_decay=0.05)
            return first, torch.optim.SGD(self.net[3].parameters(), lr=0.1, weight_decay=0.05)

        def training_step(self, batch, batch_idx):
            optimizers = self.optimizers()
            self.manual_backward(self.loss(batch))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    with pytest.raises(ValueError, match=r"manual optimization.*total_steps="):
        fit(SoftpruneCallback(METHOD), Manual(), tmp_path)
    callback = SoftpruneCallback(METHOD, total_steps=16)
    fit(callback, Manual(), tmp_path, epochs=2)
    assert callback.sparsifier.step == 16
    assert all(row.s > METHOD.s_init for row in callback.sparsifier.diagnose())


class Endless(IterableDataset):
    def __iter__(self):
        return iter(loader().dataset)


class Late(Classifier):
    def configure_model(self):
        self.head = nn.Linear(10, 10)


@pytest.mark.parametrize(
    ("build", "settings", "data", "message"),
    [
        pytest.param(lambda: Classifier(adamw), {}, loader, "s would never move", id="no decay"),
        pytest.param(
            lambda: Classifier(decayed),
            {"max_epochs": 2},
            lambda: DataLoader(Endless(), batch_size=32),
            "does not know how many.*max_steps",
            id="data without length",
        ),
        pytest.param(
            lambda: Classifier(decayed), {"max_epochs": -1}, loader, "does not know how many.*max_steps", id="no end"
        ),
        pytest.param(Late, {}, loader, "head.weight came after", id="built late"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_step(build, settings, data, message, tmp_path):
    trainer = trainer_with(SoftpruneCallback(METHOD), folder=tmp_path, **settings)
    with pytest.raises(ValueError, match=message):
        trainer.fit(build(), data())
    assert trainer.global_step == 0


def test_an_own_decay_under_a_scheduler_asks_for_groups(tmp_path):
    def scheduled(module):
        optimizer, scheduler = sgd(module.parameters(), 48)
        return [optimizer], [scheduler]

    with pytest.raises(ValueError, match=r"a learning rate scheduler has been built.*param_groups\(\)"):
        fit(SoftpruneCallback(METHOD, threshold_decay=0.1), Classifier(scheduled), tmp_path)


def test_strategies_that_flatten_parameters_are_refused():
    trainer = SimpleNamespace(strategy=pl.strategies.FSDPStrategy())
    with pytest.raises(ValueError, match=r"FSDPStrategy.*ddp"):
        SoftpruneCallback(METHOD).setup(trainer, Classifier(), "fit")


def test_one_callback_serves_one_model(tmp_path):
    callback = SoftpruneCallback(METHOD)
    fit(callback, Classifier(), tmp_path, epochs=1)
    with pytest.raises(ValueError, match="another model"):
        fit(callback, Classifier(), tmp_path, epochs=1)


def test_the_handle_is_asked_of_a_trainer_that_has_one(tmp_path):
    with pytest.raises(ValueError, match="no SoftpruneCallback"):
        sparsifier_of(trainer_with(folder=tmp_path))
