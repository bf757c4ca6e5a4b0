"""Runs that begin with trained weights: every kind of file gives the same network, and what does not fit is named."""

import os
import pickle
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_run import Watcher, assert_same_run, final_state
from torch import nn

from softprune.core.state_file import write_tensors
from softprune.nn.catalog import build
from softprune.train.assembly import load_weights_
from softprune.train.config import ConfigError, RunConfig, content_hash
from softprune.train.dry_run import plan_text, time_steps
from softprune.train.load_run import bake_run, evaluate_run, read_weights
from softprune.train.run import resume, train

sys.path.append(str(Path(__file__).resolve().parents[1] / "golden"))
from shared_folder import shared

# A rate so small that the weights after the run are those before it, up to rounding.
STILL = ["epochs=1", "data.subset=320", "threads=1", "optimizer.lr=1e-12", "optimizer.weight_decay=0"]


def config(*changes):
    return RunConfig.load("digits/dense", [*STILL, *changes])


def trained_weights():
    torch.manual_seed(7)
    return {key: value.clone() for key, value in build("digits").state_dict().items()}


def written(folder, kind):
    """The same weights in each kind of file."""
    weights = trained_weights()
    path = folder / {"safetensors": "model.safetensors"}.get(kind, "model.th")
    if kind == "safetensors":
        write_tensors(path, weights)
    elif kind == "state dict":
        torch.save(weights, path)
    elif kind == "checkpoint":
        torch.save({"state_dict": weights, "epoch": 3, "optimizer": {"lr": 0.1}}, path)
    else:
        torch.save({"state_dict": {f"module.{key}": value for key, value in weights.items()}}, path)
    return path


KINDS = ["safetensors", "state dict", "checkpoint", "data parallel"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_same_network(tmp_path, kind):
    model = load_weights_(build("digits"), read_weights(written(tmp_path, kind)), origin="it")
    assert all(torch.equal(value, trained_weights()[key]) for key, value in model.state_dict().items())


def test_a_run_begins_with_them_before_anything_is_pruned(tmp_path):
    path = written(tmp_path, "data parallel")
    train(
        config(f"model.weights={path}", "method={name: gmp, every: 4}", "goal={sparsity: 0.9, ramp: constant}"),
        tmp_path / "run",
    )
    bake_run(tmp_path / "run", tmp_path / "baked.safetensors")
    baked, names = load_file(tmp_path / "baked.safetensors"), [k for k, v in trained_weights().items() if v.ndim > 1]
    start = torch.cat([trained_weights()[name].flatten() for name in names])
    ended = torch.cat([baked[name].flatten() for name in names])
    kept = ended != 0
    assert int(kept.sum()) == 9_373
    torch.testing.assert_close(ended[kept], start[kept])
    # Global magnitude: nothing that went is larger than what stayed, but for the least that every tensor keeps.
    assert start[~kept].abs().max() <= start[kept].abs().quantile(0.1)


def test_a_run_folder_gives_what_baking_it_gives(tmp_path):
    first = tmp_path / "first"
    train(config("optimizer.lr=0.1", "method=str", "goal=0.9"), first)
    bake_run(first, tmp_path / "baked.safetensors")
    from_folder, from_file = read_weights(first), read_weights(tmp_path / "baked.safetensors")
    assert from_folder.keys() == from_file.keys() == trained_weights().keys()
    assert all(torch.equal(from_folder[key], from_file[key]) for key in from_file)
    kept = train(config(f"model.weights={first}", "method=keep-zeros"), tmp_path / "second").budget
    assert kept.params == 9_373


def test_a_stopped_run_goes_on_without_the_file(tmp_path):
    changes = ["optimizer.lr=0.1", "method=str", "goal=0.9", f"model.weights={written(tmp_path, 'state dict')}"]
    train(config(*changes), tmp_path / "whole")
    stopped = Watcher(at_step=3, act=lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert not train(config(*changes), tmp_path / "parts", observer=stopped).finished
    (tmp_path / "model.th").unlink()
    assert resume(tmp_path / "parts").finished
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert evaluate_run(tmp_path / "parts")[1].params == 9_373


def test_a_run_whose_checkpoints_are_gone_begins_with_the_weights_again(tmp_path):
    path = written(tmp_path, "state dict")
    stopped = Watcher(at_step=3, act=lambda: os.kill(os.getpid(), signal.SIGTERM))
    train(config(f"model.weights={path}"), tmp_path / "run", observer=stopped)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    resume(tmp_path / "run")
    tensors, _ = final_state(tmp_path / "run")
    torch.testing.assert_close(tensors["model.0.weight"], trained_weights()["0.weight"])
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    path.unlink()
    with pytest.raises(ValueError, match=r"model\.weights: there is no file"):
        resume(tmp_path / "run")


def wrong_weights(change):
    weights = trained_weights()
    change(weights)
    return weights


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("0.weight"), "; missing: 0.weight. Check"),
        (lambda w: w.update({"head.bias": torch.zeros(3)}), "; unknown to the network: head.bias. Check"),
        (lambda w: w.update({"0.weight": torch.zeros(2, 3)}), "of another shape: 0.weight has 2x3, the network "),
        (lambda w: [w.pop(key) for key in list(w)], "missing: .* and [0-9]+ more"),
    ],
    ids=["missing", "unknown", "shape", "empty"],
)
def test_weights_of_another_network_are_named_before_anything_is_written(tmp_path, change, message):
    torch.save(wrong_weights(change), tmp_path / "model.pt")
    settings = config(f"model.weights={tmp_path / 'model.pt'}")
    for begin in (
        lambda: train(settings, tmp_path / "run"),
        lambda: plan_text(settings),
        lambda: time_steps(settings, 1),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            begin()
        assert "model.pt are not those of" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_all_of_them_fit_or_none_is_changed():
    model = build("digits")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="missing"):
        load_weights_(model, wrong_weights(lambda w: w.pop("0.weight")), origin="it")
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


class Code:
    """What a pickle could run."""

    def __reduce__(self):
        return (os.system, ("true",))


def test_what_is_no_file_of_weights_is_refused_by_name(tmp_path):
    (tmp_path / "text.safetensors").write_text("no tensors")
    (tmp_path / "text.pt").write_text("no tensors")
    (tmp_path / "code.pt").write_bytes(pickle.dumps({"a": Code()}))
    torch.save({"model": trained_weights(), "epoch": 3}, tmp_path / "other.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    train(config(), tmp_path / "run")
    checkpoint = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    for path, message in [
        (tmp_path / "absent.th", "there is no file .*absent.th"),
        (tmp_path / "absent.safetensors", "there is no file .*absent.safetensors"),
        (tmp_path, "is not a run folder, since it has no config.yaml: name"),
        (tmp_path / "text.safetensors", "no safetensors file"),
        (tmp_path / "text.pt", "text.pt is"),
        (tmp_path / "code.pt", "code.pt is"),
        (tmp_path / "other.pt", "but the keys model, epoch; save model.state_dict"),
        (tmp_path / "list.pt", "holds no state dict of tensors; save"),
        (checkpoint, "is the whole state of a run, .*: name the run folder"),
    ]:
        with pytest.raises(ValueError, match=message):
            read_weights(path)


def test_a_network_with_a_part_called_module_keeps_its_names():
    model = nn.Sequential()
    model.add_module("module", nn.Linear(2, 1))
    weights = {key: torch.ones_like(value) for key, value in model.state_dict().items()}
    assert load_weights_(model, weights, origin="it").module.weight.eq(1).all()


def test_batch_norms_from_before_they_counted_their_batches_load():
    old = {k: v for k, v in trained_weights().items() if not k.endswith("num_batches_tracked")}
    assert len(old) < len(trained_weights())
    load_weights_(build("digits"), old, origin="it")


def test_the_keys_have_no_part_in_the_identity_of_a_run_without_them():
    assert content_hash(config()) == content_hash(config("model.weights=null", "data.normalise=own"))
    assert content_hash(config()) != content_hash(config("model.weights=a.th"))
    assert "digits from a.th on" not in plan_text(config())
    with pytest.raises(ConfigError, match=r"data\.normalise: .*imagenet.* only with cifar10 and image-folder"):
        config("data.normalise=imagenet")


@pytest.mark.parametrize("file", ["resnet20-12fca82f.th", "resnet56-4bfd9763.th"])
def test_the_recipes_take_the_published_checkpoints(file):
    path = shared("data", "checkpoints", file)
    network = file.partition("-")[0]
    text = plan_text(RunConfig.load(f"{network}/cifar10-finetune", [f"model.weights={path}"]))
    assert f"{network} from {path} on cifar10" in text
