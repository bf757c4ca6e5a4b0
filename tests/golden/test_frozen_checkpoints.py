"""The names in checkpoints stay as they are: tensors of sparsified models, facts of sparsifiers, files of runs.

Values are in the files that are kept, which `test_files_of_before.py` reads; here it is names, shapes and types.
"""

import csv
import json

import pytest
import torch
from frozen_networks import cnn, images, kept_sparsifier, labels, low_rank, perceptron, rows
from frozen_text import assert_frozen, sections, structure
from safetensors import safe_open
from torch import nn

from softprune import (
    GMP,
    STR,
    Flops,
    Params,
    Rank,
    Sparsity,
    Units,
    constant,
    cubic,
    erk,
    linear,
    methods,
    profile,
    sparsify,
)
from softprune.nn import FastGRNNClassifier
from softprune.train.config import RunConfig
from softprune.train.run import train

# Every method with the total that it takes; those that can go without one appear twice.
METHODS = [name for name in methods.__all__ if getattr(getattr(methods, name), "accepts", None)]


def keys(model):
    return [f"{name}: {str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for name, t in model.state_dict().items()]


def by_method():
    counted = profile(perceptron(), rows(1))
    for name in sorted(set(METHODS) - {"Method"}):
        cls = getattr(methods, name)
        for total in cls.accepts:
            given = {"goal": Sparsity(0.5)} if total == "goal" else {}
            given |= {"budget": erk(counted, Sparsity(0.5))} if total == "budget" else {}
            yield f"{name}, {total}", sparsify(perceptron(), cls(), **given)


def by_unit():
    x = images(1)
    yield "STR per filter", sparsify(cnn(), STR(granularity="filter"))
    yield "STR per weight", sparsify(cnn(), STR(granularity="weight"))
    yield "STR, one for all", sparsify(cnn(), STR(granularity="global"))
    for method in (STR(), GMP()):
        name = type(method).__name__
        yield f"{name}, filters", sparsify(cnn(), method, goal=Sparsity(0.5), units=Units.filter, example=x)
        yield f"{name}, blocks", sparsify(perceptron(), method, goal=Sparsity(0.5), units=Units.block(4, 8))
        yield f"{name}, ranks", sparsify(low_rank(), method, goal=Sparsity(0.5), units=Units.rank)
    yield "filters to multiply-adds", sparsify(cnn(), STR(), goal=Flops(20_000), units=Units.filter, example=x)
    recurrent = FastGRNNClassifier(9, 12, classes=2, learned=True)
    yield "ranks of a recurrent network", sparsify(recurrent, STR(), goal=Rank(w=4, u=3), units=Units.rank)
    for what in ("thresholds", "support", "budget"):
        for method, goal in ((STR(s_init=-3.0), None), (GMP(), Sparsity(0.5))):
            sparsifier = sparsify(cnn(), method, goal=goal)
            sparsifier.freeze(what)
            yield f"{type(method).__name__}, {what} frozen", sparsifier


def test_sparsified_models_have_the_frozen_keys():
    found = {name: keys(sparsifier.model) for name, sparsifier in (*by_method(), *by_unit())}
    assert len(found) > 30
    assert_frozen("model_keys.txt", sections(found))


def test_a_model_that_was_baked_has_the_keys_it_came_with():
    for method, given in ((STR(s_init=-3.0), {}), (methods.SNIP(), {"goal": Sparsity(0.5)}), (methods.VD(), {})):
        assert keys(sparsify(cnn(), method, **given).bake(at="now")) == keys(cnn())


def one_step(sparsifier, x):
    """After a step, when all that a method remembers is there."""
    optimizer = torch.optim.SGD(sparsifier.param_groups(weight_decay=0.01), lr=0.02, momentum=0.9)
    sparsifier.attach(optimizer, total_steps=1200)
    nn.functional.cross_entropy(sparsifier.model(x), labels(len(x))).backward()
    optimizer.step()
    return sparsifier


def facts(sparsifier):
    """What kind of facts there are; and in full what loading compares word for word: the method and the goals."""
    state = sparsifier.state_dict()
    return [*structure(state), json.dumps(state["method"]), *state["goals"]]


@pytest.mark.filterwarnings("ignore::softprune.ForecastWarning", "ignore::softprune.CollapseWarning")
def test_the_facts_of_every_sparsifier_are_the_frozen_ones():
    found = {name: facts(one_step(s, rows())) for name, s in by_method()}
    found |= {name: facts(s) for name, s in by_unit()}
    for goal in (Sparsity(0.5, scope="all"), Params(300), Flops(20_000)):
        for schedule in (linear(), constant(), cubic(0.2, 0.6)):
            sparsifier = sparsify(cnn(), STR(), goal=goal, schedule=schedule, example=images(1))
            found.setdefault("goals by schedules", []).extend(sparsifier.state_dict()["goals"])
    assert_frozen("sparsifier_facts.txt", sections(found))


@pytest.mark.filterwarnings("ignore::softprune.ForecastWarning")
def test_a_saved_sparsifier_is_the_frozen_files_with_the_frozen_header(tmp_path):
    kept_sparsifier("str_goal")[0].save(tmp_path)
    found = {"files": sorted(path.name for path in tmp_path.iterdir())}
    with safe_open(tmp_path / "state.safetensors", "pt") as file:
        header = file.metadata()
        found["header"] = sorted(header)
        found["tensors"] = sorted(file.keys())
    # No fact is a number that a machine may round: they are frozen as they are.
    found["facts"] = [f"{key}: {json.dumps(value)}" for key, value in json.loads(header["softprune"]).items()]
    assert_frozen("saved_sparsifier.txt", sections(found))


RUNS = {
    "sgd": ["digits/str-goal"],
    "adamw and an average": [
        "digits/str-goal", "ema=0.9", "optimizer.name=adamw", "optimizer.momentum=0", "optimizer.lr=0.01",
    ],
    "the paper's mode": ["digits/str", "propose.push=2"],
}  # fmt: skip
SHORT = ["epochs=2", "data.subset=128", "threads=1", "log.every_steps=1"]


@pytest.mark.parametrize("name", RUNS)
def test_run_folders_have_the_frozen_files_names_and_columns(name, tmp_path):
    recipe, *changes = RUNS[name]
    train(RunConfig.load(recipe, [*SHORT, *changes]), tmp_path / "run")
    folder, found = tmp_path / "run", {}
    found["files"] = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    with safe_open(folder / "checkpoints" / "step-000000004.safetensors", "pt") as file:
        found["tensors"] = [f"{key}: {file.get_slice(key).get_shape()}" for key in sorted(file.keys())]
        found["header"] = sorted(file.metadata())
        said = json.loads(file.metadata()["softprune"])
    # The states of generators are long.
    random = said.pop("random")
    found["random"] = sorted(random[0] if isinstance(random, list) else random)
    found["facts"] = structure(said)
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found["metrics"] = sorted({f"{row['kind']}: {', '.join(row)}" for row in metrics})
    with (folder / "layers.csv").open() as file:
        table = list(csv.DictReader(file))
    found["layers"] = [", ".join(table[0]), *sorted({row["name"] for row in table})]
    found["result"] = structure(json.loads((folder / "result.json").read_text()))
    found["environment"] = sorted(json.loads((folder / "environment.json").read_text()))
    found["config"] = (folder / "config.yaml").read_text().splitlines()
    assert_frozen(f"run_{name.split()[0]}.txt", sections(found))
