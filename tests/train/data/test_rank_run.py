"""Runs to exact ranks on a small HAR-2: configuration, resumption, evaluation, and the folded network they leave."""

import os
import signal

import pytest
import torch
from safetensors.torch import load_file
from sequence_files import HAR_COUNTS, write_har

from softprune.deploy.export.formats import from_pretrained, save_pretrained
from softprune.train.config import ConfigError, RunConfig, config_schema
from softprune.train.data import har
from softprune.train.dry_run import plan_text
from softprune.train.load_run import bake_run, evaluate_run, plain_network, plain_weights
from softprune.train.observer import Silent
from softprune.train.run import resume, train

RUN = {
    "model": {"name": "fastgrnn_har2", "args": {"learned": True, "hidden_size": 80}},
    "method": "str",
    "units": "rank",
    "goal": {"rank": {"w": 9, "u": 4}},
    "epochs": 4,
    "batch": 20,
    "optimizer": {"name": "adam", "lr": 0.003},
    "threads": 1,
}


def config(root, **changes):
    data = {"name": "har2", "root": str(root), "rotate": 30.0, "shift": 5}
    return RunConfig.parse({**RUN, "data": data, **changes})


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("har")
    write_har(folder)
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch):
    # The defaults of a function are read when it is made.
    monkeypatch.setitem(har.read_har2.__kwdefaults__, "counts", HAR_COUNTS)


@pytest.fixture(scope="module")
def run(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(har.read_har2.__kwdefaults__, "counts", HAR_COUNTS)
        return folder, train(config(root), folder)


def test_it_ends_with_exactly_the_ranks(run):
    folder, outcome = run
    assert outcome.finished and outcome.result["last"]["units"] == 13
    assert dict(outcome.budget) == {"rnn.cell.w.m": 1.0, "rnn.cell.u.m": 0.05}
    assert evaluate_run(folder)[0].accuracy == outcome.result["last"]["accuracy"]


class StopAt(Silent):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, progress) -> None:
        if progress.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def test_it_goes_on_bit_for_bit_with_changed_samples(run, root, tmp_path):
    assert not train(config(root), tmp_path / "parts", observer=StopAt(5)).finished
    assert resume(tmp_path / "parts").finished
    whole, parts = plain_weights(run[0]), plain_weights(tmp_path / "parts")
    assert whole.keys() == parts.keys() and all(torch.equal(whole[key], parts[key]) for key in whole)
    other = train(config(root, data={"name": "har2", "root": str(root)}), tmp_path / "unchanged")
    assert any(not torch.equal(value, whole[key]) for key, value in plain_weights(other.folder).items())


def test_the_network_it_leaves_is_folded_and_its_weights_can_begin_another_run(run, root, tmp_path):
    folder, _ = run
    weights = plain_weights(folder)
    assert int(torch.count_nonzero(weights["rnn.cell.u.m"])) == 4
    small = plain_network(folder)
    assert small.module.rnn.cell.u.rank == 4 and isinstance(small.module.rnn.cell.w, torch.nn.Linear)
    bake_run(folder, tmp_path / "baked.safetensors")
    stored = load_file(tmp_path / "baked.safetensors")
    assert stored["rnn.cell.u.up"].shape == (80, 4) and "rnn.cell.u.m" not in stored
    x = torch.randn(3, 128, 9)
    read = plain_network(tmp_path / "baked.safetensors", model="fastgrnn_har2").module
    assert torch.equal(read(x), small.module(x))
    save_pretrained(small.module, tmp_path / "folder", network=small.name, args=small.args)
    assert torch.equal(from_pretrained(tmp_path / "folder")(x), small.module(x))
    model = {**RUN["model"], "weights": str(folder)}
    assert train(config(root, model=model, epochs=1), tmp_path / "next").finished


def test_the_plan_tells_the_ranks(root):
    told = plan_text(config(root))
    assert "rnn.cell.u.m" in told and "a share of Params(count=4)" in told


def test_ranks_and_units_in_a_configuration():
    read = RunConfig.parse(RunConfig.load("recipe:har2-str-9x8").model_dump())
    assert read == RunConfig.load("har2/str-9x8") and read.goal.rank == {"w": 9, "u": 8}
    assert RunConfig.parse({**read.model_dump(), "goal": {"rank": 3}}).goal.total().each == 3
    blocks = RunConfig.load("digits/str-goal", ["units={block: [4, 8]}"])
    assert (blocks.units.build().rows, blocks.units.build().cols) == (4, 8)
    assert RunConfig.parse(blocks.model_dump()) == blocks
    assert RunConfig.load("digits/str-goal", ["units=filter"]).units.build().kind == "filter"
    assert config_schema()["$defs"]["UnitsConfig"]["anyOf"][0]["enum"] == ["weight", "filter", "rank"]


@pytest.mark.parametrize(
    "changes, message",
    [
        (["units=weight"], r"goal\.rank.*set units=rank too"),
        (["units=column"], r"units.*weight"),
        (["units={kind: block}"], r"blocks have rows and columns"),
        (["goal.rank={w: 0}"], r"goal\.rank"),
        (["goal={rank: 3, sparsity: 0.5}"], r"one of sparsity, params, filters, flops, latency and rank"),
        (["goal={rank: 3, budget: erk}"], r"leave out the budget"),
        (["goal={sparsity: 0.5, budget: erk}"], r"goal\.budget.*no effect on units of kind rank"),
        (["units=weight", "goal=0.5", "optimizer.importance_decay=0.1"], r"importance_decay.*no importances"),
        (["data={name: google12, rotate: 3}"], r"data\.rotate.*only with har2"),
        (["data={name: digits, shift: 3}"], r"data\.shift.*only with har2 and google12"),
        (["data.rotate=270"], r"data\.rotate"),
    ],
)
def test_what_cannot_be_meant_is_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig.load("har2/str-9x8", changes)


def test_the_papers_way_decays_m_and_s_alone(root, tmp_path):
    changes = [f"data.root={root}", "epochs=1", "schedule=constant", "batch=20", "threads=1"]
    settings = RunConfig.load("har2/str-decay", changes)
    assert settings.optimizer.weight_decay == 0 and settings.goal is None
    with pytest.warns(match="."):  # one epoch is too short for s to get anywhere, and the forecast says so
        outcome = train(settings, tmp_path / "run")
    assert set(outcome.budget.densities) == {"rnn.cell.w.m", "rnn.cell.u.m"}
