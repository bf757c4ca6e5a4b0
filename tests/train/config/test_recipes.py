"""Every recipe validates, and the paper's runs are forecast to do what the paper's runs did."""

import csv
import importlib.util
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD

from softprune.budget.profiler import profile
from softprune.forecast.forecast import forecast
from softprune.forecast.propose import ENOUGH, propose
from softprune.forecast.simulate import crossing, trajectory
from softprune.nn.catalog import NETWORKS, build_on_meta
from softprune.train.config import RunConfig
from softprune.train.config.keys import parse_yaml
from softprune.train.config.run import load_recipe, recipe_text, recipes
from softprune.train.schedule import schedule_function

ROOT = Path(__file__).resolve().parents[3]
NAMES = [recipe.name for recipe in recipes()]
STEPS_PER_EPOCH = 5005  # ceil(1,281,167 / 256)
SMALL = [n for n in NAMES if n.partition("/")[0] in ("digits", "fashion-mnist", "resnet18", "resnet20", "resnet56")]
IMAGES = {"digits": 1280, "fashion-mnist": 60_000, "cifar10": 50_000}

# X, the epochs at which s reaches -88.7, -20, -10 and -5 with no loss gradient, and s after 100 epochs.
PAPER = {
    "resnet50/str-79.55": (8.89, (23.1, 32.9, 38.1, 43.8), -0.44),
    "resnet50/str-81.27": (9.16, (22.4, 31.9, 36.8, 42.1), -0.34),
    "resnet50/str-87.70": (10.73, (19.3, 27.0, 30.9, 34.9), -0.070),
    "resnet50/str-90.23": (11.77, (17.7, 24.6, 28.0, 31.5), -0.025),
    "resnet50/str-90.55": (10.73, (12.5, 19.8, 23.3, 27.0), -0.018),
    "resnet50/str-94.80": (15.95, (13.5, 18.4, 20.8, 23.1), -3.8e-4),
    "resnet50/str-95.03": (17.52, (16.6, 21.1, 23.3, 25.6), -3.1e-4),
    "resnet50/str-95.15": (15.95, (11.3, 16.1, 18.4, 20.8), -1.9e-4),
    "resnet50/str-96.11": (15.95, (1.5, 7.1, 9.4, 11.6), -1.2e-5),
    "resnet50/str-96.53": (21.18, (14.0, 17.7, 19.5, 21.2), -8e-6),
    "resnet50/str-97.78": (27.28, (11.3, 14.1, 15.5, 16.8), -2e-8),
    "resnet50/str-98.05": (29.55, (10.6, 13.2, 14.4, 15.6), -2e-9),
    "resnet50/str-98.22": (31.64, (10.0, 12.4, 13.6, 14.7), 0),
    "resnet50/str-98.79": (39.48, (8.4, 10.3, 11.3, 12.2), 0),
    "resnet50/str-98.98": (44.71, (7.7, 9.4, 10.2, 11.0), 0),
    "resnet50/str-99.10": (47.32, (7.4, 9.0, 9.7, 10.5), 0),
    "mobilenetv1/str-75.28": (8.11, (2.3, 12.1, 16.6, 21.2), -0.030),
    "mobilenetv1/str-79.07": (8.11, (0.0, 3.3, 7.8, 12.1), -0.007),
    "mobilenetv1/str-85.80": (15.95, (13.5, 18.4, 20.8, 23.1), -3.8e-4),
    "mobilenetv1/str-89.01": (19.61, (15.0, 19.0, 20.9, 22.9), -3.9e-5),
    "mobilenetv1/str-89.62": (19.61, (11.3, 15.3, 17.1, 19.0), -9.6e-6),
}


@pytest.fixture(scope="module")
def paper_rates():
    rate = schedule_function(load_recipe("resnet50/str-90.23"), STEPS_PER_EPOCH)
    return [rate(step) for step in range(100 * STEPS_PER_EPOCH)]


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_validates_and_round_trips(name):
    config = load_recipe(name)
    assert RunConfig.parse(parse_yaml(config.dump(), "a dump")) == config == RunConfig.load(name)
    assert config.name == name.replace("/", "-")
    assert config.model.name in NETWORKS and config.summary and config.expected is not None and config.expected.cost
    # A number always says who measured it.
    assert config.expected.accuracy is None or config.expected.source
    assert recipe_text(name).startswith(f"# softprune train {name}")


@pytest.mark.parametrize("name", PAPER)
def test_the_runs_of_the_paper_are_forecast_as_they_went(name, paper_rates):
    X, epochs, s_end = PAPER[name]
    config = load_recipe(name)
    optimizer = config.optimizer
    assert (optimizer.lr, optimizer.momentum, optimizer.threshold_decay) == (0.256, 0.875, None)
    assert optimizer.weight_decay == optimizer.norm_decay
    assert (config.epochs, config.batch, config.label_smoothing, config.drop_last) == (100, 256, 0.1, False)
    assert config.schedule == load_recipe("resnet50/str-90.23").schedule

    decay = optimizer.weight_decay
    path = trajectory("sgd", config.method.settings["s_init"], paper_rates, decay=decay, momentum=0.875)
    assert decay * math.fsum(paper_rates) / 0.125 == pytest.approx(X, abs=0.006)
    reached = [crossing(path, mark) / STEPS_PER_EPOCH for mark in (-88.73, -20.0, -10.0, -5.0)]
    assert reached == pytest.approx(epochs, abs=0.1)
    assert path[-1] == pytest.approx(s_end, rel=0.08, abs=1e-8)


def test_the_forecast_of_a_recipe_has_no_warning():
    config = load_recipe("resnet50/str-90.23")
    s = nn.Parameter(torch.tensor([config.method.settings["s_init"]]))
    sgd = SGD(
        [s], lr=config.optimizer.lr, momentum=config.optimizer.momentum, weight_decay=config.optimizer.weight_decay
    )
    rate = schedule_function(config, STEPS_PER_EPOCH)
    seen = forecast(sgd, s=s, s_on=-10.0, total_steps=100 * STEPS_PER_EPOCH, scheduler=rate)
    assert (round(seen.K), seen.warnings) == (522_762, ())
    assert seen.onset == pytest.approx(0.28, abs=1e-3)


@pytest.mark.parametrize("name", [n for n in SMALL if not n.endswith("-finetune")])
def test_what_the_small_recipes_propose_is_reached(name):
    config = load_recipe(name)
    if config.method is None:
        assert load_recipe(name.replace("dense", "str")).optimizer.lr == config.optimizer.lr
        return
    if config.goal is not None:
        assert config.goal.sparsity == config.expected.sparsity
        assert config.optimizer == load_recipe(name.replace("str-goal", "dense")).optimizer
        return
    assert config.method.proposes and config.optimizer.threshold_decay == "propose"
    steps_per_epoch = math.ceil(IMAGES[config.data.name] / config.batch)
    sgd = SGD([torch.zeros(1)], lr=config.optimizer.lr, momentum=config.optimizer.momentum)
    plan = propose(
        sgd,
        total_steps=config.epochs * steps_per_epoch,
        scheduler=schedule_function(config, steps_per_epoch),
        push=config.propose.push,
        onset=config.propose.onset,
    )
    assert plan.onset == pytest.approx(config.propose.onset, abs=1e-3)
    assert "is left after the onset" not in plan.note and f"{ENOUGH}" not in plan.note


@pytest.mark.parametrize("name", [n for n in SMALL if n.endswith("-finetune")])
def test_the_recipes_for_trained_weights_say_whose_and_are_alike(name):
    config = load_recipe(name)
    network = name.partition("/")[0]
    assert config.model.weights.startswith(f"{network}-") and config.data.normalise == "imagenet"
    assert (config.goal.begin, config.goal.end) == (0.0, 0.5) and config.epochs == 1
    other = load_recipe("resnet20/cifar10-finetune")
    assert (config.optimizer, config.method, config.goal) == (other.optimizer, other.method, other.goal)


def test_digits_keeps_the_settings_whose_result_is_stated():
    config = load_recipe("digits/str")
    assert (config.epochs, config.batch, config.seed, config.schedule.per) == (60, 64, 0, "step")
    assert (config.optimizer.lr, config.optimizer.momentum, config.optimizer.weight_decay) == (0.1, 0.9, 5e-4)
    assert (config.propose.push, config.propose.onset) == (8.2, 0.28)


@pytest.mark.parametrize("name", [n for n in PAPER if n.startswith("resnet50")])
def test_the_expected_costs_agree_with_the_sparsity(name):
    expected = load_recipe(name).expected
    weights = 25_502_912
    assert expected.params == pytest.approx(weights * (1 - expected.sparsity), abs=6000)
    assert expected.sparsity == pytest.approx(float(name.rpartition("-")[2]) / 100)


def test_the_list():
    found = {recipe.name: recipe for recipe in recipes()}
    assert len(found) == 53 and set(PAPER) <= set(found)
    assert found["resnet50/str-90.23"].expected["accuracy"] == 0.7431
    assert found["resnet50/str-81.27"].expected["params"] == 4_780_000
    assert "5.2517578125e-5" in found["resnet50/str-97.78"].expected["note"]
    assert all(recipe.summary and recipe.cost and "\n" not in recipe.cost for recipe in found.values())


@pytest.mark.parametrize("data", ["har2", "google12"])
def test_the_rows_of_a_data_set_differ_in_their_ranks_alone(data):
    names = [n for n in NAMES if n.startswith(f"{data}/") and not n.endswith("decay")]
    configs = {name: load_recipe(name) for name in names}
    first = configs[f"{data}/full"]
    assert len(names) == {"har2": 7, "google12": 9}[data]
    for name, config in configs.items():
        same = ("data", "optimizer", "schedule", "epochs", "batch", "clip_norm", "seed", "label_smoothing", "ema")
        assert all(getattr(config, key) == getattr(first, key) for key in same)
        assert (config.epochs, config.batch) == (300, 100)
        what, _, pair = name.partition("/")[2].partition("-")
        w, u = (int(n) for n in pair.split("x")) if pair else (None, None)
        if what == "str":
            assert config.goal.rank == {"w": w, "u": u} and config.units.kind == "rank"
        else:
            assert config.model.args == ({"rank_w": w, "rank_u": u} if pair else {}) and config.method is None


def test_a_recipe_has_a_name_without_a_slash_too():
    assert RunConfig.load("recipe:har2-str-9x8") == RunConfig.load("recipe:har2/str-9x8") == load_recipe("har2/str-9x8")
    with pytest.raises(ValueError, match=r"'har2-str-9x9' is neither .* did you mean har2/"):
        RunConfig.load("recipe:har2-str-9x9")


def test_unknown_names_say_what_is_near():
    with pytest.raises(ValueError, match=r"did you mean resnet50/str-90\.23 or "):
        load_recipe("resnet50/str-90.2")
    with pytest.raises(ValueError, match="did you mean digits/dense or digits/str"):
        RunConfig.load("digits/gmp-something-else")
    with pytest.raises(ValueError, match=r"neither a \.yaml file nor a recipe; the recipes are digits/dense, "):
        load_recipe("nothing")


def test_the_network_of_fashion_mnist():
    costs = profile(build_on_meta("small_cnn"), torch.empty(NETWORKS["small_cnn"].example_shape, device="meta"))
    assert [t.params for t in costs] == [144, 4608, 18432, 36864, 200_704, 640]
    assert (costs.params, costs.macs) == (261_392, 3_926_912)


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_up_to_date():
    stale = [path.name for path, text in tool("make_reference").pages().items() if path.read_text() != text]
    assert stale == [], "run: python tools/make_reference.py"


def test_the_files_are_those_that_the_tool_writes(tmp_path):
    """The paper's tables, written back from the recipes, give the same files."""
    maker = tool("make_recipes")
    row = {"method": "STR", "top1": "74.31", "params": "2.49M", "sparsity": "90.23", "flops": "343M"}
    hyper = {"sparsity": "90.23", "weight_decay": "0.00002251757813", "s_init": "-3200"}
    what, text = maker.recipe("resnet50", row, hyper)
    assert text == recipe_text(f"resnet50/{what}")
    assert maker.number("4.09G") == 4_090_000_000 and maker.shortest("0.00001700000000") == "1.7e-5"
    result = {"r_w": "9", "r_u": "8", "vanilla_accuracy": "94.06", "str_accuracy": "95.76", "weight_decay": "0.001"}
    full = {"r_w": "9", "r_u": "80", "vanilla_accuracy": "96.10", "str_accuracy": "", "weight_decay": ""}
    written = dict(maker.sequence_recipes("har2", [full, result]))
    assert list(written) == ["full", "vanilla-9x8", "str-9x8", "str-decay"]
    assert all(text == recipe_text(f"har2/{what}") for what, text in written.items())
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["a"], ["1"]])
    assert maker.rows(tmp_path / "a.csv") == [{"a": "1"}]
