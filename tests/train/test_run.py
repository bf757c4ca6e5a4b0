"""Runs of `train` on real digits: what they leave, how they stop, go on, and fall."""

import csv
import json
import os
import signal

import pytest
import torch

from softprune import Budget
from softprune.core.state_file import read_state
from softprune.train import trainer
from softprune.train.config import RunConfig
from softprune.train.load_run import bake_run, evaluate_run
from softprune.train.observer import Silent, StopRun
from softprune.train.run import resume, train
from softprune.train.run_folder import RunFolder
from softprune.train.trainer import evaluate

SHORT = ["epochs=3", "data.subset=320", "threads=1", "log.every_steps=2", "propose.push=2"]


class Watcher(Silent):
    def __init__(self, at_step=None, act=None):
        self.notes, self.steps, self._at, self._act = [], [], at_step, act

    def on_note(self, text):
        self.notes.append(text)

    def on_step(self, progress):
        self.steps.append(progress)
        if progress.step == self._at:
            self._act()


def config(*changes):
    return RunConfig.load("digits/str", [*SHORT, *changes])


def final_state(folder):
    return read_state(sorted((folder / "checkpoints").glob("step-*"))[-1])


def metrics(folder):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in RunFolder(folder).metrics()]


def assert_same_run(one, other):
    (a, facts_a), (b, facts_b) = final_state(one), final_state(other)
    assert a.keys() == b.keys()
    assert [k for k in a if not torch.equal(a[k], b[k])] == []
    for facts in (facts_a, facts_b):
        facts["progress"].pop("seconds")
    assert facts_a == facts_b
    assert metrics(one) == metrics(other)
    assert (one / "layers.csv").read_text() == (other / "layers.csv").read_text()
    assert (one / "budget.json").read_text() == (other / "budget.json").read_text()


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    watcher = Watcher()
    outcome = train(config(), folder, observer=watcher)
    return folder, outcome, watcher


def test_a_run_leaves_a_whole_folder(whole_run):
    folder, outcome, watcher = whole_run
    assert outcome.finished and outcome.first
    assert RunConfig.load(folder / "config.yaml") == config()
    assert json.loads((folder / "environment.json").read_text())["seed"] == 0
    rows = metrics(folder)
    assert [r["step"] for r in rows if r["kind"] == "epoch"] == [5, 10, 15]
    assert [r["step"] for r in rows if r["kind"] == "step"] == [2, 4, 6, 8, 10, 12, 14]
    with (folder / "layers.csv").open() as file:
        layers = list(csv.DictReader(file))
    assert len(layers) == 3 * 4
    last = {r["name"]: float(r["density"]) for r in layers if r["epoch"] == "2"}
    assert last == dict(Budget.load(folder)) == dict(outcome.budget)
    result = json.loads((folder / "result.json").read_text())
    assert result["last"]["sparsity"] == outcome.budget.overall
    assert (folder / result["last"]["checkpoint"]).is_file() and (folder / result["best"]["checkpoint"]).is_file()
    assert len(list((folder / "checkpoints").glob("step-*"))) == 2
    assert [p.step for p in watcher.steps] == list(range(1, 16))
    assert any("forecast" in note for note in watcher.notes)


@pytest.mark.parametrize(
    "changes", [(), ("ema=0.9",), ("optimizer.name=adamw", "optimizer.momentum=0", "optimizer.lr=0.01")]
)
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path, changes, kind):
    train(config(*changes), tmp_path / "whole")
    stopped = Watcher(at_step=7, act=lambda: os.kill(os.getpid(), kind))
    outcome = train(config(*changes), tmp_path / "parts", observer=stopped)
    assert not outcome.finished and len(stopped.steps) == 7
    assert any(f"stopped by {kind.name} after step 7" in note for note in stopped.notes)
    torch.manual_seed(99)
    watcher = Watcher()
    assert resume(tmp_path / "parts", observer=watcher).finished
    assert [p.step for p in watcher.steps] == list(range(8, 16))
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("step", [5, 15])
def test_a_run_that_was_stopped_after_the_last_step_of_an_epoch_evaluates_it_first(tmp_path, whole_run, step):
    stopped = Watcher(at_step=step, act=lambda: os.kill(os.getpid(), signal.SIGTERM))
    outcome = train(config(), tmp_path / "run", observer=stopped)
    assert outcome.finished == (step == 15)
    assert [row["step"] for row in metrics(tmp_path / "run") if row["kind"] == "epoch"] == list(range(5, step + 1, 5))
    assert resume(tmp_path / "run").finished
    assert_same_run(whole_run[0], tmp_path / "run")


def test_an_observer_can_stop_a_run_that_goes_on_later(tmp_path, whole_run):
    def enough():
        raise StopRun("the referee")

    for place, step in (("on_step", 7), ("on_metrics", 10)):
        watcher = Watcher(at_step=step, act=enough)
        if place == "on_metrics":
            watcher = Watcher()
            watcher.on_metrics = lambda row: row["kind"] == "epoch" and row["step"] == 10 and enough()
        folder = tmp_path / place
        assert not train(config(), folder, observer=watcher).finished
        assert len(watcher.steps) == step
        assert any(f"stopped by the referee after step {step}" in note for note in watcher.notes)
        assert resume(folder).finished
        assert_same_run(whole_run[0], folder)


def crash():
    raise RuntimeError("pulled the plug")


@pytest.mark.parametrize("step", [3, 5, 6, 11, 14])
def test_a_run_that_crashed_goes_on_from_its_last_checkpoint(tmp_path, whole_run, step):
    with pytest.raises(RuntimeError, match="pulled the plug"):
        train(config(), tmp_path / "run", observer=Watcher(at_step=step, act=crash))
    # A line that was being written when the power went.
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "epo')
    watcher = Watcher()
    resume(tmp_path / "run", observer=watcher)
    last = (step - 1) // 5 * 5
    assert watcher.steps[0].step == last + 1
    assert any(f"after step {last} of 15" in note for note in watcher.notes)
    assert_same_run(whole_run[0], tmp_path / "run")


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1000])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-5000] ^= 4
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


def garbage(path):
    path.write_bytes(os.urandom(5000))


@pytest.mark.parametrize("harm", [truncate, flip_a_bit, empty, garbage])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_taken(tmp_path, whole_run, harm):
    with pytest.raises(RuntimeError, match="pulled the plug"):
        train(config(), tmp_path / "run", observer=Watcher(at_step=12, act=crash))
    harm(tmp_path / "run" / "checkpoints" / "step-000000010.safetensors")
    watcher = Watcher()
    resume(tmp_path / "run", observer=watcher)
    assert watcher.steps[0].step == 6
    assert any("damaged" in note and "going back" in note for note in watcher.notes)
    assert_same_run(whole_run[0], tmp_path / "run")


def test_without_any_checkpoint_a_run_begins_again(tmp_path, whole_run):
    with pytest.raises(RuntimeError, match="pulled the plug"):
        train(config(), tmp_path / "run", observer=Watcher(at_step=2, act=crash))
    resume(tmp_path / "run")
    assert_same_run(whole_run[0], tmp_path / "run")


def test_a_disk_that_is_full_loses_nothing_that_was_written(tmp_path, monkeypatch):
    import softprune.core.state_file as state_file

    real = state_file.save_file

    def full(tensors, path, metadata=None):
        if "step-000000010" in str(path):
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(tensors, path, metadata=metadata)

    monkeypatch.setattr(state_file, "save_file", full)
    with pytest.raises(OSError, match=r"could not write .*step-000000010.*No space left.*before it are intact"):
        train(config(), tmp_path / "run")
    assert [p.name for p in sorted((tmp_path / "run" / "checkpoints").iterdir())] == [
        "best.safetensors",
        "step-000000005.safetensors",
    ]
    monkeypatch.setattr(state_file, "save_file", real)
    assert resume(tmp_path / "run").finished


def test_a_loss_that_is_not_finite_names_step_and_tensor(tmp_path):
    wild = ["optimizer.lr=1e18", "optimizer.threshold_decay=1e-30", "method.s_init=-100"]
    settings = RunConfig.load("digits/str", [*SHORT[:-1], *wild])
    message = r"the loss is (nan|inf) at step \d+; not finite: the (values|gradient) of .*weight"
    with pytest.raises(FloatingPointError, match=message):
        train(settings, tmp_path / "run")


def test_a_folder_with_a_run_is_not_overwritten(tmp_path, whole_run):
    folder = whole_run[0]
    with pytest.raises(ValueError, match="already holds a run"):
        train(config(), folder)
    with pytest.raises(ValueError, match="holds no run"):
        resume(tmp_path)


def test_evaluation_and_baking_agree_with_the_result(tmp_path, whole_run):
    folder, outcome, _ = whole_run
    score, budget = evaluate_run(folder)
    assert score.accuracy == outcome.result["last"]["accuracy"] and score.samples == 517
    assert budget.overall == outcome.budget.overall
    best, _ = evaluate_run(folder, best=True)
    assert best.accuracy == outcome.result["best"]["accuracy"]
    bake_run(folder, tmp_path / "model.safetensors")
    from safetensors.torch import load_file

    from softprune.nn.digits import digits_cnn

    plain = digits_cnn()
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
    zeros = sum(int((p == 0).sum()) for n, p in plain.named_parameters() if n in budget)
    assert zeros == round(budget.overall * budget.profile.params)


@pytest.mark.parametrize(
    "changes",
    [
        ("method=null", "optimizer.threshold_decay=null"),
        ("accumulate=4",),
        ("precision=bf16", "channels_last=true"),
        ("clip_norm=1.0",),
        ("length=2",),
        ("method.granularity=filter",),
        ("method.granularity=global",),
        ("checkpoint.every_steps=2", "checkpoint.every_epochs=null"),
        ("drop_last=true", "data.subset=330"),
    ],
    ids=str,
)
def test_variants_run_and_go_on(tmp_path, changes):
    outcome = train(config(*changes), tmp_path / "run")
    assert outcome.finished
    losses = [row["loss"] for row in metrics(tmp_path / "run") if row["kind"] == "step"]
    assert losses[-1] < losses[0]
    assert (outcome.budget is None) == ("method=null" in changes)


def test_accumulated_parts_give_the_gradient_of_the_whole_batch(tmp_path):
    # Batch norm sees the parts one by one, so a network without it.
    plain = ["model=own_parts:linear_probe", "model.args={inputs: 64, classes: 10}", "epochs=1"]
    states = []
    for parts in (1, 4):
        train(config(*plain, f"accumulate={parts}"), tmp_path / str(parts))
        states.append(final_state(tmp_path / str(parts))[0])
    for name in states[0]:
        torch.testing.assert_close(states[0][name], states[1][name], rtol=1e-4, atol=1e-6)


def test_a_model_and_data_of_ones_own_train_and_go_on(tmp_path):
    own = ["model=own_parts:linear_probe", "model.args={inputs: 64, classes: 2}", "data={name: 'own_parts:loaders'}"]
    settings = RunConfig.load("digits/str", [*own, "epochs=3", "threads=1", "propose.push=2"])
    train(settings, tmp_path / "whole")
    stopped = Watcher(at_step=6, act=lambda: os.kill(os.getpid(), signal.SIGTERM))
    train(settings, tmp_path / "parts", observer=stopped)
    assert resume(tmp_path / "parts", trust=True).finished
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_evaluations_can_be_rare_and_the_last_one_is_always_made(whole_run, tmp_path):
    train(config("evaluate_every=2"), tmp_path / "rare")
    often, rare = metrics(whole_run[0]), metrics(tmp_path / "rare")
    assert [row["epoch"] for row in rare if row["kind"] == "epoch"] == [1, 2]
    assert rare == [row for row in often if row["kind"] == "step" or row["epoch"] > 0]
    last = json.loads((tmp_path / "rare" / "result.json").read_text())["last"]
    assert last["accuracy"] == json.loads((whole_run[0] / "result.json").read_text())["last"]["accuracy"]


def test_going_on_clears_away_what_a_kill_left_half_written(whole_run, tmp_path):
    folder = tmp_path / "run"
    train(config(), folder, observer=Watcher(7, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    left = [folder / "checkpoints" / ".step-000000010.safetensors.1.part", folder / ".budget.json.1.part"]
    for part in left:
        part.write_bytes(b"half")
    resume(folder)
    assert not any(part.exists() for part in left)
    assert_same_run(whole_run[0], folder)


def test_an_epoch_with_nan_is_never_the_best(tmp_path, monkeypatch, recwarn):
    def after_a_broken_step(runner, *rest):
        next(runner.parameters()).data.view(-1)[0] = float("nan")
        return evaluate(runner, *rest)

    monkeypatch.setattr(trainer, "evaluate", after_a_broken_step)
    watcher = Watcher()
    outcome = train(config("epochs=1"), tmp_path / "run", observer=watcher)
    assert outcome.result["best"] is None
    assert not (tmp_path / "run" / "checkpoints" / "best.safetensors").exists()
    assert any("not kept as the best" in note for note in watcher.notes)
