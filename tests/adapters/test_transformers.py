"""The adapter for the Trainer of transformers: tiny models with random weights, nothing is downloaded."""

import json
import logging

import pytest
import torch
from plain_loop import assert_equal, kept
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import Dataset, SequentialSampler

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'softprune[transformers]'"
)
pytest.importorskip("accelerate", reason="accelerate is not installed: pip install 'softprune[transformers]'")

from transformers import (  # noqa: E402
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_cosine_schedule_with_warmup,
)

from softprune import Filters, Params, Sparsity, Units, constant, profile, uniform  # noqa: E402
from softprune.adapters.transformers import SoftpruneCallback, sparsify_trainer  # noqa: E402
from softprune.core.sparsify import sparsify  # noqa: E402
from softprune.methods import GMP, SET, STR, RigL, Static  # noqa: E402
from softprune.ops import Exp  # noqa: E402
from softprune.train.data.digits import load_digits  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::softprune.forecast.forecast.ForecastWarning")

METHOD = STR(s_init=-6.0)
SAMPLES, BATCH, EPOCHS = 64, 16, 4
STEPS = EPOCHS * SAMPLES // BATCH
WEIGHT_DECAY, THRESHOLD_DECAY, LR = 1e-2, 0.1, 0.1


@pytest.fixture(autouse=True, scope="module")
def _quiet():
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    yield
    transformers.logging.set_verbosity(before)


@pytest.fixture(autouse=True)
def _own_precision(monkeypatch):
    """Some versions leave the precision of the last training arguments in the environment."""
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)


class Digits(Dataset):
    """The pixels of a digit in reading order are a text of 64 letters out of 17."""

    def __init__(self):
        digits = load_digits()
        self.texts = (digits.train_images[:SAMPLES] * 16).long().flatten(1)
        self.labels = digits.train_labels[:SAMPLES]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"input_ids": self.texts[index], "labels": self.labels[index]}


class InOrder(Trainer):
    """A Trainer of one's own; this one does not shuffle."""

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)


def bert(seed=0):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForSequenceClassification(
        BertConfig(vocab_size=17, max_position_embeddings=64, num_labels=10, **sizes, **dropout)
    )


def gpt2(seed=0):
    torch.manual_seed(seed)
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 17}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **sizes, **dropout))


def trainer_of(model, folder, *, callbacks=(), optimizers=(None, None), optimizer_cls_and_kwargs=None, **settings):
    settings = {
        "optim": "sgd", "learning_rate": LR, "lr_scheduler_type": "cosine", "weight_decay": WEIGHT_DECAY,
        "max_grad_norm": 0.0, "num_train_epochs": EPOCHS, "per_device_train_batch_size": BATCH, "logging_steps": 4,
        "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True, **settings,
    }  # fmt: skip
    args = TrainingArguments(output_dir=str(folder), **settings)
    made = InOrder(
        model=model,
        args=args,
        train_dataset=Digits(),
        eval_dataset=Digits(),
        callbacks=[*callbacks],
        optimizers=optimizers,
        optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
    )
    made.remove_callback(transformers.PrinterCallback)
    return made


def train_plainly(*, method=METHOD, clip=None, half=False, **settings):
    sparsifier = sparsify(bert(), method, **settings)
    groups = sparsifier.param_groups(weight_decay=WEIGHT_DECAY, threshold_decay=THRESHOLD_DECAY)
    optimizer = torch.optim.SGD(groups, lr=LR)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 0, STEPS)
    sparsifier.attach(optimizer, total_steps=STEPS, scheduler=scheduler)
    # In the order of the model, as the Trainer takes them: a norm depends on it in its last bit.
    weights = [p for name, p in sparsifier.model.named_parameters() if not name.endswith(".s")]
    data = Digits()
    sparsifier.model.train()
    for _ in range(EPOCHS):
        for texts, labels in zip(data.texts.split(BATCH), data.labels.split(BATCH), strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = sparsifier.model(input_ids=texts, labels=labels).loss
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(weights, clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return sparsifier


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        pytest.param({}, {}, id="plain"),
        pytest.param({"max_grad_norm": 0.05}, {"clip": 0.05}, id="clipping"),
        pytest.param({"bf16": True}, {"half": True}, id="bf16"),
    ],
)
def test_it_trains_what_the_plain_loop_trains(settings, same, tmp_path):
    trainer = trainer_of(bert(), tmp_path, **settings)
    sparsifier = sparsify_trainer(trainer, METHOD, threshold_decay=THRESHOLD_DECAY)
    trainer.train()
    wanted = train_plainly(**same)
    assert_equal(trainer.model.state_dict(), wanted.model.state_dict())
    assert sparsifier.step == sparsifier.total_steps == wanted.step == STEPS
    assert dict(sparsifier.measure()) == dict(wanted.measure())
    assert sparsifier.diagnose() == wanted.diagnose()
    assert 0 < wanted.measure().overall < 1
    assert sparsifier.forecast == wanted.forecast


EXAMPLE = {"input_ids": torch.zeros(1, 64, dtype=torch.long)}


def a_tenth():
    """A budget of a tenth of each tensor of `bert`: of its 10,144 weights 54 + 205 + 6 + 7 * 102 + 32 = 1,011."""
    return uniform(profile(bert(), EXAMPLE), Sparsity(0.9))


@pytest.mark.parametrize(
    ("method", "total", "left"),
    [
        pytest.param(METHOD, lambda: {"goal": Params(1000)}, 1000, id="params"),
        pytest.param(METHOD, lambda: {"goal": Sparsity(0.75), "schedule": constant()}, 2536, id="a schedule"),
        pytest.param(GMP(every=4), lambda: {"goal": Params(1000)}, 1000, id="gmp"),
        pytest.param(RigL(every=2), lambda: {"budget": a_tenth(), "seed": 3}, 1011, id="rigl"),
        pytest.param(SET(every=2), lambda: {"budget": a_tenth(), "seed": 3}, 1011, id="set"),
        pytest.param(Static(), lambda: {"budget": a_tenth(), "seed": 3}, 1011, id="static"),
        pytest.param(
            METHOD, lambda: {"goal": Filters(100), "units": Units.filter, "example": EXAMPLE}, 100, id="filters"
        ),
        pytest.param(METHOD, lambda: {"goal": Sparsity(0.5), "units": Units.block(4, 4)}, 236, id="blocks"),
    ],
)
def test_goals_and_budgets_are_met_exactly(method, total, left, tmp_path):
    trainer = trainer_of(bert(), tmp_path)
    sparsifier = sparsify_trainer(trainer, method, **total())
    trainer.train()
    wanted = train_plainly(method=method, **total())
    assert kept(sparsifier) == left
    assert_equal(trainer.model.state_dict(), wanted.model.state_dict())
    assert trainer.state.log_history[-1]["sparsity"] == wanted.measure().overall
    plain = list(bert().state_dict())
    sparsifier.bake()
    trainer.save_model(str(tmp_path / "baked"))
    loaded = BertForSequenceClassification.from_pretrained(tmp_path / "baked")
    assert list(loaded.state_dict()) == plain
    assert_equal(loaded.state_dict(), trainer.model.state_dict())


@pytest.mark.parametrize(
    ("method", "total"),
    [
        pytest.param(METHOD, lambda: {"goal": Params(1000)}, id="goal"),
        pytest.param(RigL(every=2), lambda: {"budget": a_tenth()}, id="rigl"),
        pytest.param(METHOD, lambda: {"goal": Filters(100), "units": Units.filter, "example": EXAMPLE}, id="filters"),
    ],
)
def test_a_resumed_run_approaches_its_goal_like_the_uninterrupted_one(method, total, tmp_path):
    whole, resumed = (trainer_of(bert(seed), tmp_path, save_strategy="steps", save_steps=6) for seed in (0, 1))
    sparsify_trainer(whole, method, **total())
    whole.train()
    sparsify_trainer(resumed, method, **total())
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert_equal(resumed.model.state_dict(), whole.model.state_dict())


def test_baking_the_best_checkpoint_meets_a_goal_that_did_not_hold_yet(tmp_path):
    epochs = {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 2}
    trainer = trainer_of(bert(), tmp_path, load_best_model_at_end=True, greater_is_better=True, **epochs)
    sparsifier = sparsify_trainer(trainer, METHOD, goal=Params(1000))
    trainer.train()
    # The larger loss is called the better one, so it is the one of the first epoch.
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-4")
    assert kept(sparsifier) > 1000
    targets = sparsifier.targets
    sparsifier.bake()
    assert sum(int(torch.count_nonzero(getattr(*target.sites[0]))) for target in targets) == 1000


def test_tied_weights_and_the_linear_layer_of_gpt2_share_a_goal(tmp_path):
    trainer = trainer_of(gpt2(), tmp_path)
    trainer.data_collator = lambda rows: {"input_ids": (texts := _stack(rows)), "labels": texts}
    sparsifier = sparsify_trainer(trainer, METHOD, goal=Params(1000))
    trainer.train()
    assert kept(sparsifier) == 1000
    assert {"transformer.wte.weight", "transformer.h.0.attn.c_attn.weight"} < {t.name for t in sparsifier.targets}
    # Single weights of layers that have no blocks are not taken for blocks.
    with pytest.raises(ValueError, match="nothing to gate"):
        sparsify_trainer(trainer_of(gpt2(), tmp_path), METHOD, goal=Sparsity(0.5), units=Units.block(4, 4))


def test_accumulated_batches_make_one_step(tmp_path):
    trainer = trainer_of(
        bert(), tmp_path, per_device_train_batch_size=8, gradient_accumulation_steps=4, num_train_epochs=1
    )
    sparsifier = sparsify_trainer(trainer, METHOD)
    trainer.train()
    assert sparsifier.step == sparsifier.total_steps == trainer.state.global_step == 2  # of 8 batches


def test_the_default_optimizer_gives_thresholds_their_own_decay_and_norms_none(tmp_path):
    trainer = trainer_of(bert(), tmp_path, optim=TrainingArguments(output_dir=str(tmp_path)).optim, learning_rate=1e-2)
    sparsifier = sparsify_trainer(trainer, METHOD, threshold_decay=0.5)
    trainer.train()
    groups = {group["name"]: group for group in trainer.optimizer.param_groups}
    assert type(trainer.optimizer.optimizer) is torch.optim.AdamW
    assert {name: group["weight_decay"] for name, group in groups.items()} == {
        "weight": WEIGHT_DECAY, "norm": 0.0, "threshold": 0.5,
    }  # fmt: skip
    assert len(groups["threshold"]["params"]) == len(sparsifier.targets)
    assert all(row.s > METHOD.s_init for row in sparsifier.diagnose())


@pytest.mark.parametrize(
    ("build", "method"),
    [
        pytest.param(bert, STR(s_init=-4.0, g=Exp(k="auto")), id="bert with scaled exp"),
        pytest.param(bert, STR(s_init=-6.0, granularity="global"), id="bert with one threshold"),
        pytest.param(gpt2, METHOD, id="gpt2 with tied weights"),
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one(build, method, tmp_path):
    def made(seed):
        trainer = trainer_of(build(seed), tmp_path, save_strategy="steps", save_steps=6)
        if build is gpt2:
            trainer.data_collator = lambda rows: {"input_ids": (texts := _stack(rows)), "labels": texts}
        return trainer, sparsify_trainer(trainer, method, threshold_decay=THRESHOLD_DECAY)

    whole, _ = made(0)
    whole.train()
    # Other weights to start with: nothing may depend on them.
    resumed, sparsifier = made(1)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert_equal(resumed.model.state_dict(), whole.model.state_dict())
    assert sparsifier.step == STEPS
    assert 0 < sparsifier.measure().overall < 1


def _stack(rows):
    return torch.stack([row["input_ids"] for row in rows])


def test_tied_weights_stay_one_tensor_with_one_threshold(tmp_path):
    trainer = trainer_of(gpt2(), tmp_path)
    sparsifier = sparsify_trainer(trainer, METHOD)
    model = trainer.model
    tied = next(target for target in sparsifier.targets if target.name == "transformer.wte.weight")
    assert [module for module, _ in tied.sites] == [model.transformer.wte, model.lm_head]
    # The linear layer of GPT-2's own counts as one, its bias does not.
    names = {target.name for target in sparsifier.targets}
    assert {"transformer.h.0.attn.c_attn.weight", "transformer.h.0.mlp.c_proj.weight"} < names
    assert not any(name.endswith("bias") for name in names)


@pytest.mark.parametrize("build", [bert, gpt2])
def test_a_baked_model_is_saved_and_loaded_like_any_other(build, tmp_path):
    model = build()
    plain = list(model.state_dict())
    trainer = trainer_of(model, tmp_path)
    sparsifier = sparsify_trainer(trainer, STR(s_init=-4.0))
    density = sparsifier.measure()[
        "bert.embeddings.word_embeddings.weight" if build is bert else "transformer.wte.weight"
    ]
    assert sparsifier.bake() is model
    trainer.save_model(str(tmp_path / "baked"))
    loaded = type(model).from_pretrained(tmp_path / "baked")
    assert list(loaded.state_dict()) == plain
    assert_equal(loaded.state_dict(), model.state_dict())
    embedding = loaded.get_input_embeddings().weight
    assert int((embedding != 0).sum()) == round(density * embedding.numel())
    assert 0 < density < 1
    loaded.tie_weights()
    # The same Trainer trains the plain model on.
    trainer.args.max_steps = 1
    if build is bert:
        trainer.train()
        assert trainer.state.global_step == 1


def test_sparsity_and_macs_are_in_the_logs_that_everybody_gets(tmp_path):
    reported = []

    class Reporter(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            reported.append(dict(logs))

    trainer = trainer_of(bert(), tmp_path, callbacks=[Reporter()], eval_strategy="epoch")
    sparsifier = sparsify_trainer(
        trainer, METHOD, example={"input_ids": torch.zeros(1, 64, dtype=torch.long)}, threshold_decay=THRESHOLD_DECAY
    )
    trainer.train()
    history = trainer.state.log_history
    assert [row["sparsity"] for row in reported] == [row["sparsity"] for row in history]
    assert {"loss", "eval_loss", "train_loss"} <= set().union(*reported)
    assert history[0]["sparsity"] < history[-1]["sparsity"] == sparsifier.measure().overall
    assert history[-1]["macs"] == sparsifier.measure().macs() < history[0]["macs"]
    assert trainer.evaluate()["sparsity"] == sparsifier.measure().overall


def test_the_best_checkpoint_is_loaded_at_the_end(tmp_path):
    epochs = {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 2}
    trainer = trainer_of(gpt2(), tmp_path, load_best_model_at_end=True, greater_is_better=True, **epochs)
    trainer.data_collator = lambda rows: {"input_ids": (texts := _stack(rows)), "labels": texts}
    sparsifier = sparsify_trainer(trainer, METHOD, threshold_decay=THRESHOLD_DECAY)
    trainer.train()
    # The larger loss is called the better one, so it is the one of the first epoch.
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-4")
    best = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    state = trainer.model.state_dict()
    assert all(torch.equal(state[name], t) for name, t in best.items())
    assert sparsifier.measure().overall == trainer.state.log_history[0]["sparsity"]


def test_an_optimizer_of_ones_own_needs_only_the_callback(tmp_path):
    model = bert()
    sparsifier = sparsify(model, METHOD)
    optimizer = torch.optim.SGD(
        sparsifier.param_groups(weight_decay=WEIGHT_DECAY, threshold_decay=THRESHOLD_DECAY), lr=LR
    )
    trainer = trainer_of(model, tmp_path, optimizers=(optimizer, None), callbacks=[SoftpruneCallback(sparsifier)])
    trainer.train()
    assert sparsifier.step == sparsifier.total_steps == STEPS
    assert_equal(model.state_dict(), train_plainly().model.state_dict())


def test_training_again_starts_to_count_again(tmp_path):
    trainer = trainer_of(bert(), tmp_path, num_train_epochs=1)
    sparsifier = sparsify_trainer(trainer, METHOD)
    trainer.train()
    before = {row.name: row.s for row in sparsifier.diagnose()}
    trainer.train()
    assert sparsifier.step == sparsifier.total_steps == 4
    assert all(row.s > before[row.name] for row in sparsifier.diagnose())


def test_a_frozen_checkpoint_asks_to_be_frozen_first(tmp_path):
    class Freeze(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 3:
                sparsifier.freeze("support")

    trainer = trainer_of(bert(), tmp_path, callbacks=[Freeze()], save_strategy="steps", save_steps=6)
    sparsifier = sparsify_trainer(trainer, STR(s_init=-4.0))
    trainer.train()
    whole = trainer.model.state_dict()
    checkpoint = str(tmp_path / "checkpoint-6")
    trainer = trainer_of(bert(1), tmp_path)
    sparsify_trainer(trainer, STR(s_init=-4.0))
    with pytest.raises(ValueError, match=r"freeze\('support'\).*before train"):
        trainer.train(resume_from_checkpoint=checkpoint)
    trainer = trainer_of(bert(1), tmp_path)
    sparsify_trainer(trainer, STR(s_init=-4.0)).freeze("support")
    trainer.train(resume_from_checkpoint=checkpoint)
    assert_equal(trainer.model.state_dict(), whole)


def test_the_state_is_plain_json(tmp_path):
    trainer = trainer_of(bert(), tmp_path, save_strategy="steps", save_steps=6)
    sparsifier = sparsify_trainer(trainer, METHOD)
    trainer.train()
    saved = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text())["stateful_callbacks"][
        "softprune"
    ]
    assert saved == {**sparsifier.state_dict(), "step": 6}


@pytest.mark.parametrize(
    ("method", "total", "message"),
    [
        pytest.param(METHOD, {"goal": 0.9}, r"did you mean Sparsity\(0.9\)", id="a goal that is a number"),
        pytest.param(METHOD, {"goal": Params(9), "threshold_decay": 0.1}, "has no effect", id="decay under a goal"),
        pytest.param(METHOD, {"goal": Params(9), "budget": a_tenth()}, "give one", id="goal and budget"),
        pytest.param(RigL(), {}, "pass a budget", id="a method that needs a budget"),
        pytest.param(METHOD, {"goal": Sparsity(0.5), "units": Units.filter}, "pass example=", id="filters"),
        pytest.param(METHOD, {"schedule": constant()}, "for a goal or a budget", id="a schedule for nothing"),
        pytest.param(
            METHOD, {"goal": Filters(9), "units": Units.filter, "example": EXAMPLE, "weight_decay": -1.0},
            "weight_decay must be", id="bad decay of weights",
        ),
    ],
)  # fmt: skip
def test_a_total_that_cannot_work_is_refused_and_nothing_is_changed(method, total, message, tmp_path):
    model, total = bert(), dict(total)
    trainer = trainer_of(model, tmp_path, weight_decay=total.pop("weight_decay", WEIGHT_DECAY))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    callbacks = list(trainer.callback_handler.callbacks)
    with pytest.raises((TypeError, ValueError), match=message):
        sparsify_trainer(trainer, method, **total)
    assert_equal(model.state_dict(), before)
    assert type(model.classifier) is nn.Linear
    assert (list(trainer.callback_handler.callbacks), trainer.optimizer) == (callbacks, None)


@pytest.mark.parametrize(
    ("settings", "decay", "message"),
    [
        pytest.param({"weight_decay": 0.0}, None, "threshold_decay is 0", id="no decay"),
        pytest.param({}, float("nan"), "threshold_decay must be a finite number", id="bad decay"),
        pytest.param({"optimizers": True}, 0.1, "has an optimizer.*SoftpruneCallback", id="optimizer given"),
        pytest.param({"optimizer_cls_and_kwargs": True}, 0.1, "forms its own parameter groups", id="own groups"),
    ],
)
def test_what_cannot_work_is_refused_and_nothing_is_changed(settings, decay, message, tmp_path):
    model = bert()
    if "optimizers" in settings:
        settings = {"optimizers": (torch.optim.SGD(model.parameters(), lr=0.1), None)}
    if "optimizer_cls_and_kwargs" in settings:
        settings = {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"params": list(model.parameters()), "lr": 0.1})}
    trainer = trainer_of(model, tmp_path, **settings)
    before = list(model.state_dict()), list(trainer.callback_handler.callbacks), trainer.optimizer
    with pytest.raises(ValueError, match=message):
        sparsify_trainer(trainer, METHOD, threshold_decay=decay)
    assert (list(model.state_dict()), list(trainer.callback_handler.callbacks), trainer.optimizer) == before


def test_a_trainer_that_makes_its_model_anew_is_refused(tmp_path):
    args = TrainingArguments(output_dir=str(tmp_path), report_to="none", use_cpu=True, weight_decay=0.1)
    with pytest.raises(ValueError, match="model_init"):
        sparsify_trainer(Trainer(model_init=lambda: bert(), args=args), METHOD)
    model = bert()
    callback = SoftpruneCallback(sparsify(model, METHOD))
    trainer = trainer_of(bert(), tmp_path, callbacks=[callback])
    with pytest.raises(ValueError, match="another model"):
        trainer.train()
