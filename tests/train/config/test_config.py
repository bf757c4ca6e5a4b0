"""The configuration: what it accepts, how it says no, and that files of it are stable."""

import json
import re
from pathlib import Path

import pytest
from pydantic import ValidationError
from torch import nn

from softprune.methods.base import from_config, method_names
from softprune.ops import Exp
from softprune.train.config import ConfigError, RunConfig, config_schema, content_hash, parse_match
from softprune.train.config.goal import method_defaults, method_descriptions
from softprune.train.config.keys import leaves, parse_yaml

ROOT = Path(__file__).resolve().parents[3]
BASE = {
    "model": "digits",
    "data": "digits",
    "method": {"name": "str", "s_init": -100},
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
    "epochs": 6,
    "batch": 64,
}
METHOD = {"g": "sigmoid", "backward": None, "granularity": "tensor", "min_keep": 0}


def problems(**changes):
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse({**BASE, **changes})
    return {problem.path: problem.message for problem in caught.value.problems}


def test_short_and_long_forms_are_the_same():
    long = {
        **BASE,
        "model": {"name": "digits", "args": {}},
        "data": {"name": "digits"},
        "schedule": "cosine",
        "method": {"name": "str", "s_init": -100.0, **METHOD},
    }
    assert RunConfig.parse(long) == RunConfig.parse(BASE)
    assert RunConfig.parse({**BASE, "method": "str"}).method.settings == method_defaults("str")


def test_dump_holds_every_default_in_order_and_loads_back(tmp_path):
    config = RunConfig.parse({**BASE, "rules": [{"match": "/conv/", "g": "exp"}], "skip": ["6.weight"]})
    data = parse_yaml(config.dump(), "a dump")
    assert list(data) == list(RunConfig.model_fields)
    assert data["method"] == {**{"name": "str"}, **method_defaults("str"), "s_init": -100.0}
    assert data["optimizer"]["betas"] == [0.9, 0.999] and data["rules"][0]["g"] == {"g": "exp"}
    (tmp_path / "run.yaml").write_text(config.dump())
    assert RunConfig.load(tmp_path / "run.yaml") == config


def test_it_is_frozen():
    config = RunConfig.parse(BASE)
    with pytest.raises(ValidationError, match="frozen"):
        config.epochs = 3
    with pytest.raises(ValidationError, match="frozen"):
        config.optimizer.lr = 3.0


def test_everything_wrong_is_listed_at_once_with_its_path():
    found = problems(
        modle="digits", lr=0.1, epochs=10.0, seed=True, version=2, name="a b", skip="fc", ema=90, label_smoothing=10,
        data="cifar", method={"name": "str", "s_inti": 3, "granularity": "tensr"},
        optimizer={"name": "sgdd", "lr": "0.1", "momentun": 0.9, "threshold_decay": "prpose"},
        rules=[{"match": "/(/", "skp": True}], expected={"accuracy": 90.23},
    )  # fmt: skip
    assert found["modle"] == "unknown key; did you mean model?"
    assert found["lr"] == "unknown key; did you mean optimizer.lr?"
    assert found["epochs"] == "10.0 is not a whole number: write 10"
    assert found["seed"] == "true is not a whole number"
    assert found["version"] == "is 2; this release reads version 1"
    assert "letter or digit" in found["name"] and found["skip"] == "'fc' is not a list"
    assert found["ema"] == "90 is not below 1: it is a fraction, write 0.9"
    assert found["label_smoothing"] == "10 is not below 1: it is a fraction, write 0.1"
    assert found["expected.accuracy"] == "90.23 is not at most 1: it is a fraction, write 0.9023"
    assert found["data.name"].endswith("did you mean 'cifar10'?")
    assert found["method.s_inti"].startswith("unknown key; did you mean method.s_init?")
    assert "must be one of tensor, filter, weight, global" in found["method.granularity"]
    assert found["optimizer.name"] == "'sgdd' is not one of sgd, adam, adamw; did you mean 'sgd'?"
    assert found["optimizer.lr"] == "'0.1' is not a number: write 0.1 without quotes"
    assert found["optimizer.threshold_decay"] == "'prpose' is not a number or propose"
    assert found["optimizer.momentun"].startswith("unknown key; did you mean optimizer.momentum? (optimizer has name, ")
    assert "regular expression" in found["rules.0.match"] and "rules.0.skip?" in found["rules.0.skp"]
    assert len(found) == 19


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"data": None}, "data", "null is not a section of keys"),
        ({"method": {"s_init": 4}}, "method.name", "is missing"),
        ({"method": "sstr"}, "method.name", "did you mean 'str'?"),
        ({"method": {"name": "str", "s_init": "90"}}, "method.s_init", "or write propose"),
        ({"method": {"name": "str", "g": "sigmod"}}, "method.g", "known are sigmoid, exp, softplus"),
        ({"method": {"name": "str", "backward": "maskd"}}, "method.backward", "backward must be masked"),
        ({"method": {"name": "keep-zeros", "s_init": 4}}, "method.s_init", "unknown key"),
        ({"model": "mobilenet"}, "model.name", "did you mean 'mobilenetv1'?"),
        ({"model": "my package:net"}, "model.name", "nor package.module:factory"),
        ({"batch": 0}, "batch", "0 is not at least 1"),
        ({"skip": ["type:Conv9"]}, "skip", "type:Conv9 is not a type of module"),
        ({"skip": [""]}, "skip", "an empty match means nothing"),
        ({"rules": [{"match": "type:no such.Layer"}]}, "rules.0.match", "no module 'no such'"),
        ({"rules": [{"match": "a", "g": "sigmod"}]}, "rules.0.g", "unknown g 'sigmod'"),
        ({"clip_norm": float("inf")}, "clip_norm", "finite"),
        ({"accumulate": 3}, "accumulate", "does not divide the batch of 64"),
        ({"schedule": {"warmup_epochs": 7}}, "schedule.warmup_epochs", "or use length, which scales both"),
        ({"schedule": {"warmup_epochs": 0.5, "per": "epoch"}}, "schedule.warmup_epochs", "is not a whole number"),
        ({"schedule": {"milestones": [2]}}, "schedule.milestones", "no effect with cosine, only with step"),
        ({"schedule": "step"}, "schedule.milestones", "needs some"),
        ({"schedule": {"name": "step", "milestones": [4, 2]}}, "schedule.milestones", "[4.0, 2.0] must rise"),
        ({"schedule": {"name": "step", "milestones": [40]}}, "schedule.milestones", "or use length, which scales both"),
        ({"schedule": {"name": "constant", "final": 0.5}}, "schedule.final", "only with cosine"),
        ({"data": {"name": "digits", "image_size": 64}}, "data.image_size", "only with image-folder"),
        ({"data": {"name": "my.data:make", "subset": 64}}, "data.subset", "64 has no effect with my.data:make"),
        ({"propose": {"push": 3.0}}, "propose.push", "set optimizer.threshold_decay=propose"),
        ({"propose": {"onset": 0.5}}, "propose.onset", "set method.s_init=propose"),
    ],
)
def test_each_mistake_says_how_to_put_it_right(changes, path, message):
    assert message in problems(**changes)[path]


def test_settings_of_another_optimizer_are_refused():
    found = problems(optimizer={"name": "adamw", "lr": 0.1, "momentum": 0.9, "threshold_decay": 1.0})
    assert found["optimizer.momentum"] == (
        "0.9 has no effect with adamw, only with sgd; leave it out, or set it back to 0.0"
    )
    assert "betas" in str(problems(optimizer={"name": "sgd", "lr": 0.1, "betas": [0.5, 0.9], "threshold_decay": 1.0}))
    nesterov = problems(optimizer={"name": "sgd", "lr": 0.1, "nesterov": True, "threshold_decay": 1.0})
    assert "needs momentum" in nesterov["optimizer.nesterov"]


def test_thresholds_without_decay_are_refused_unless_the_run_is_dense():
    still = {"name": "sgd", "lr": 0.1}
    assert "s would never move" in problems(optimizer=still)["optimizer.threshold_decay"]
    assert RunConfig.parse({**BASE, "optimizer": still, "method": "keep-zeros"}).method.name == "keep-zeros"
    assert RunConfig.load("digits/str", ["method=null"]).method is None


def test_files_that_are_no_configuration(tmp_path):
    file = tmp_path / "run.yaml"
    for text, message in [
        ("", "null is not a mapping of keys to values"),
        ("- 1", r"\[1\] is not a mapping"),
        ("a: 1\nb: [", "line 2 is not valid YAML"),
        ("epochs: 1\nepochs: 2", "line 2 is not valid YAML: 'epochs' is given twice"),
    ]:
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            RunConfig.load(file)
    with pytest.raises(FileNotFoundError):
        RunConfig.load(tmp_path / "absent.yaml")


def test_the_method_is_built_as_the_registry_builds_it():
    config = RunConfig.parse({**BASE, "method": {"name": "str", "s_init": -7, "g": {"g": "exp", "k": 2}}})
    assert config.method.build() == from_config({"method": "str", "s_init": -7.0, "g": {"g": "exp", "k": 2.0}})
    proposed = RunConfig.load("digits/str").method
    assert proposed.proposes and proposed.build(-50.0).s_init == -50.0
    with pytest.raises(ValueError, match="compute it with softprune"):
        proposed.build()


@pytest.mark.parametrize("name", method_names())
def test_the_defaults_of_every_method_are_the_method_itself(name):
    defaults = method_defaults(name)
    assert from_config({"method": name, **defaults}) == from_config({"method": name})
    assert set(method_descriptions(name)) == set(defaults) and json.dumps(defaults)


def test_rules_become_rules():
    rule = RunConfig.parse({**BASE, "rules": [{"match": "layer1.*", "g": {"g": "exp", "k": 2}, "min_keep": 3}]}).rules[
        0
    ]
    built = rule.build()
    assert (built.match, built.g, built.min_keep, built.skip) == ("layer1.*", Exp(k=2), 3, None)


def test_matches_as_text():
    conv = nn.Conv2d(4, 4, 3, groups=4)
    assert parse_match("/conv[12]/").search("layer1.conv2.weight")
    assert parse_match("type:Conv2d") is nn.Conv2d and parse_match("type:torch.nn.Linear") is nn.Linear
    depthwise = parse_match("depthwise")
    assert depthwise("a", conv) and not depthwise("a", nn.Conv2d(4, 4, 3)) and not depthwise("a", nn.Linear(2, 2))
    assert parse_match("fc.*") == "fc.*"
    with pytest.raises(ValueError, match=r"type:no\.such\.Layer: the network has imported no module 'no\.such'"):
        parse_match("type:no.such.Layer")
    with pytest.raises(ValueError, match=r"type:os\.system is not a type of module"):
        parse_match("type:os.system")


def test_the_hash_is_pinned_and_knows_what_matters():
    config = RunConfig.parse(BASE)
    assert content_hash(config) == "089191f92dfe"
    same = RunConfig.parse(
        {**BASE, "name": "other", "accumulate": 1, "log": {"every_steps": 7}, "expected": {"accuracy": 0.9},
         "method": {"name": "str", "s_init": -100, "min_keep": 0, "g": {"g": "sigmoid", "k": 1}}}
    )  # fmt: skip
    assert content_hash(same) == content_hash(config)
    for change in ({"seed": 1}, {"method": "str"}, {"method": None}, {"epochs": 7}, {"data": "mnist"}):
        assert content_hash(RunConfig.parse({**BASE, **change})) != content_hash(config)


def test_the_schema_describes_every_key():
    schema = config_schema()
    assert json.loads(json.dumps(schema)) == schema
    assert set(schema["properties"]) == set(RunConfig.model_fields)
    assert {"model", "data", "method", "optimizer", "epochs", "batch"} == set(schema["required"])
    short, long = schema["$defs"]["MethodConfig"]["anyOf"]
    assert short["type"] == "string" and {"name", *method_defaults("str")} <= set(long["properties"])
    assert all(field.description for _, field in leaves(RunConfig))


def test_the_page_lists_every_key():
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([\w.\[\]]+)` \|", page, re.M))
    methods = {f"method.{key}" for name in method_names() for key in method_defaults(name)}
    assert listed == {path for path, _ in leaves(RunConfig)} | methods
