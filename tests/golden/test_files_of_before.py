"""Files that an earlier release has written are read, mean the same, and are gone on with.

Where rounding differs between processors, numbers are compared to a tolerance that holds on any of them; counts, masks
and the exact network are compared bit for bit.
"""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from files_of_before import (
    BEFORE,
    EPOCHS,
    RUNS,
    STEPS_DONE,
    STEPS_PER_EPOCH,
    load_momentum,
)
from frozen_networks import KEPT, TOTAL_STEPS, exact_inputs, exact_network, images, kept_sparsifier, train
from safetensors.torch import load_file

import softprune
from softprune import Budget, Sparsity
from softprune.deploy.format.spx import read_spx
from softprune.train.config import RunConfig
from softprune.train.run import resume

pytestmark = pytest.mark.filterwarnings("ignore::softprune.ForecastWarning", "ignore::softprune.CollapseWarning")
# Sums of a few hundred products in another order, with or without fused multiply-adds, and exp to an ulp.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def test_the_files_of_before_are_few_and_small():
    files = [path for path in BEFORE.rglob("*") if path.is_file()]
    assert {path.name for path in BEFORE.iterdir()} == {*RUNS, *KEPT, "spx"}
    assert sum(path.stat().st_size for path in files) < 800_000


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_an_earlier_release_has_begun_goes_on_to_its_end(name, tmp_path):
    folder, total = tmp_path / "run", EPOCHS[name] * STEPS_PER_EPOCH
    shutil.copytree(BEFORE / name, folder)
    before = (folder / "metrics.jsonl").read_text()
    outcome = resume(folder, trust=True)
    assert outcome.finished
    assert not [path for path in folder.rglob("*") if "unreadable" in path.name]
    # What was logged stays, every step is there once.
    metrics = (folder / "metrics.jsonl").read_text()
    assert metrics.startswith(before)
    lines = [json.loads(line) for line in metrics.splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "step"] == list(range(1, total + 1))
    assert [line["epoch"] for line in lines if line["kind"] == "epoch"] == list(range(EPOCHS[name]))
    result = json.loads((folder / "result.json").read_text())
    assert result["last"]["step"] == total
    assert (folder / result["last"]["checkpoint"]).is_file()
    budget = Budget.load(folder)
    assert budget.overall == result["last"]["sparsity"]
    if name != "run_paper":
        counted = sum(row.params for row in budget.profile)
        assert budget.params == Sparsity(0.95).kept(counted)
    with (folder / "layers.csv").open() as file:
        assert {int(row["epoch"]) for row in csv.DictReader(file)} == set(range(EPOCHS[name]))


def test_the_configuration_in_a_run_folder_of_before_is_still_that_of_its_recipe():
    changes, _ = RUNS["run_digits"]
    config = RunConfig.load(BEFORE / "run_digits" / "config.yaml")
    assert config.dump() == (BEFORE / "run_digits" / "config.yaml").read_text()
    recipe = RunConfig.load(
        "digits/str-goal", ["data.subset=256", "threads=1", "log.every_steps=1", "checkpoint.keep=1", *changes]
    )
    assert config == recipe


@pytest.fixture(params=KEPT)
def loaded(request):
    """The sparsifier on a fresh network, continued from the checkpoint of before, and what it gave then."""
    sparsifier, optimizer = kept_sparsifier(request.param)
    folder = BEFORE / request.param
    sparsifier.load(folder)
    expected = load_file(folder / "expected.safetensors")
    load_momentum(sparsifier, optimizer, expected)
    return request.param, sparsifier, optimizer, expected


@torch.no_grad()
def test_a_checkpoint_of_before_gives_what_it_gave(loaded):
    name, sparsifier, _, expected = loaded
    assert (sparsifier.step, sparsifier.total_steps) == (STEPS_DONE, TOTAL_STEPS)
    budget = Budget.load(BEFORE / name / "budget.json")
    assert dict(sparsifier.measure()) == dict(budget)
    assert sparsifier.measure().profile == budget.profile
    for target in sparsifier.targets:
        was = expected[f"effective.{target.name}"]
        # Which weights are zero is decided, how large the others are is computed.
        assert torch.equal(target.effective != 0, was != 0)
        torch.testing.assert_close(target.effective, was, **CLOSE)
    sparsifier.model.eval()
    torch.testing.assert_close(sparsifier.model(images(4, seed=9)), expected["outputs"], **CLOSE)


def test_a_checkpoint_of_before_is_trained_to_its_end_and_meets_its_goal(loaded):
    name, sparsifier, optimizer, _ = loaded
    train(sparsifier, optimizer, steps=TOTAL_STEPS - STEPS_DONE)
    assert sparsifier.step == TOTAL_STEPS
    kept = sparsifier.measure().params
    total = sum(target.shape.numel() for target in sparsifier.targets)
    sparsifier.model.eval()
    with torch.no_grad():
        expected = sparsifier.model(images(4))
        plain = sparsifier.bake()
        assert torch.equal(plain(images(4)), expected)
    assert sum(int(p.count_nonzero()) for n, p in plain.named_parameters() if p.ndim > 1) == kept
    assert kept < total if name == "str_paper" else kept == Sparsity(0.75).kept(total)


def test_the_engine_runs_a_network_of_before_bit_for_bit():
    expected = np.load(BEFORE / "spx" / "outputs.npy")
    engine = softprune.load(BEFORE / "spx" / "network.spx", threads=1, tune=False)
    assert np.array_equal(np.asarray(engine(exact_inputs().numpy())), expected)
    assert len(np.unique(expected)) == expected.size  # numbers that differ, not all zeros


def test_a_network_is_exported_into_the_bytes_of_before(tmp_path):
    # Names of nodes come from torch.export, whose version `constraints.txt` pins.
    path = softprune.export(exact_network(), tmp_path / "network.spx", example=exact_inputs()[:1])
    before = BEFORE / "spx" / "network.spx"
    assert read_spx(path).digest == read_spx(before).digest
    assert path.read_bytes() == before.read_bytes()
