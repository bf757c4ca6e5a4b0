"""Files and run folders of strangers: code that they name is not imported, unless the user says so."""

import sys

import pytest
import torch
from typer.testing import CliRunner

from softprune.cli import app
from softprune.train.config import RunConfig
from softprune.train.config.keys import parse_yaml, write_yaml
from softprune.train.dry_run import plan_text
from softprune.train.load_run import bake_run, evaluate_run, network_of, plain_network, plain_weights, read_weights
from softprune.train.run import resume, train
from softprune.train.sweep.sweep import Sweep

SHORT = ["epochs=1", "data.subset=128", "threads=1", "log.every_steps=1"]
PROBE = ["model=own_parts:linear_probe", "model.args={inputs: 64, classes: 10}"]
# A module whose import leaves a trace; no test may ever import it by accident.
TRAP = "trap_of_a_stranger"
KEYS = {"model.name": "net", "data.name": "loaders", "log.own": "Logger"}


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A folder on the Python path with a module that marks its import; whether the mark is there."""
    mark, place = tmp_path / "imported", tmp_path / "path"
    place.mkdir()
    (place / f"{TRAP}.py").write_text(
        f"from pathlib import Path\nfrom own_parts import Recorder as Logger, linear_probe, loaders\n"
        f"Path({str(mark)!r}).touch()\ndef net(**args):\n    return linear_probe(64, 10)\n"
    )
    monkeypatch.syspath_prepend(place)
    yield mark.exists
    sys.modules.pop(TRAP, None)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "run"
    train(RunConfig.load("digits/str-goal", SHORT), folder)
    return folder


def tampered(run, folder, key):
    """A copy of a run whose configuration names code of a stranger."""
    folder.mkdir()
    for file in run.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "config.yaml").unlink()
    data = parse_yaml((run / "config.yaml").read_text(), "it")
    section, name = key.split(".")
    data[section][name] = [f"{TRAP}:{KEYS[key]}"] if name == "own" else f"{TRAP}:{KEYS[key]}"
    data["data"]["subset"] = None
    (folder / "config.yaml").write_text(write_yaml(data))
    return folder


@pytest.mark.parametrize("key", KEYS)
def test_nothing_that_takes_a_run_folder_imports_what_it_names(plain, trap, tmp_path, key):
    folder = tampered(plain, tmp_path / "run", key)
    out = tmp_path / "model.safetensors"
    for act in (
        lambda: resume(folder),
        lambda: evaluate_run(folder),
        lambda: bake_run(folder, out),
        lambda: plain_network(folder),
        lambda: network_of(folder),
        lambda: plain_weights(folder),
        lambda: RunConfig.load(folder / "config.yaml"),
    ):
        with pytest.raises(ValueError, match=rf"config\.yaml names Python code .*{key}: {TRAP}:{KEYS[key]}.*--trust"):
            act()
    assert not trap() and not out.exists() and TRAP not in sys.modules
    assert RunConfig.load(folder / "config.yaml", trust=True).code() == [(key, f"{TRAP}:{KEYS[key]}")]
    assert not trap()


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--resume", "RUN"],
        ["train", "RUN/config.yaml", "--out", "OUT"],
        ["train", "RUN/config.yaml", "--dry-run"],
        ["train", "RUN/config.yaml", "epochs=1", "--time", "1"],
        ["evaluate", "RUN"],
        ["bake", "RUN", "-o", "OUT"],
        ["export", "RUN", "-o", "OUT.spx"],
        ["bench", "RUN", "--table", "OUT.json"],
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_the_command_line_says_how_to_trust(plain, trap, tmp_path, words):
    folder = tampered(plain, tmp_path / "run", "model.name")
    words = [word.replace("RUN", str(folder)).replace("OUT", str(tmp_path / "out")) for word in words]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1 and isinstance(result.exception, ValueError)
    assert f"{TRAP}:net" in str(result.exception) and "--trust" in str(result.exception)
    assert not trap() and not list(tmp_path.glob("out*"))


def test_with_trust_every_command_runs_it(tmp_path):
    settings = RunConfig.load("digits/str-goal", [*SHORT, *PROBE])
    (tmp_path / "mine.yaml").write_text(settings.dump())
    for words in (
        ["train", tmp_path / "mine.yaml", "--out", tmp_path / "run", "--quiet"],
        ["train", "--resume", tmp_path / "run", "--quiet"],
        ["evaluate", tmp_path / "run"],
        ["bake", tmp_path / "run", "-o", tmp_path / "model.safetensors"],
        ["export", tmp_path / "run", "-f", "safetensors"],
    ):
        result = CliRunner().invoke(app, [*map(str, words), "--trust"])
        assert result.exit_code == 0, result.output


def test_what_is_written_on_the_command_line_is_the_users_own(tmp_path):
    file = tmp_path / "theirs.yaml"
    file.write_text(RunConfig.load("digits/str", SHORT).dump())
    assert RunConfig.load(file, PROBE).code() == [("model.name", "own_parts:linear_probe")]
    own = RunConfig.load(file, ["log.own=['own_parts:Recorder']", "model={name: 'own_parts:tiny_cnn'}"])
    file.write_text(own.dump())
    with pytest.raises(ValueError, match=r"\(log\.own: own_parts:Recorder\)"):
        RunConfig.load(file, ["model.name=own_parts:tiny_cnn"])
    with pytest.raises(ValueError, match=r"\(model\.name: own_parts:tiny_cnn\)"):
        RunConfig.load(file, ["log.own=[]"])
    assert RunConfig.load(file, ["log.own=[]", "model=digits"]).code() == []


def test_looking_at_a_configuration_imports_nothing(plain, trap, tmp_path):
    folder = tampered(plain, tmp_path / "run", "log.own")
    (folder / "config.yaml").write_text(
        (folder / "config.yaml").read_text().replace("skip: []", f'skip: ["type:{TRAP}.Logger"]')
    )
    for command in ("show", "validate"):
        result = CliRunner().invoke(app, ["config", command, str(folder / "config.yaml")])
        assert result.exit_code == 0, result.output
    with pytest.raises(ValueError, match=f"the network has imported no module '{TRAP}'"):
        plan_text(RunConfig.load(folder / "config.yaml", ["log.own=[]"]))
    assert not trap()


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        ("digits/dense", []),
        ("digits/str", ["propose.push=2"]),
        ("digits/str-goal", []),
        ("digits/str-goal", ["ema=0.9"]),
        ("digits/str-goal", ["method={name: gmp, every: 1}", "skip=['type:torch.nn.modules.linear.Linear']"]),
        ("digits/str-goal", ["units=filter"]),
    ],
    ids=["dense", "str", "goal", "average", "gmp", "filters"],
)
def test_the_weights_of_a_run_are_read_on_the_network_of_the_one_that_wants_them(tmp_path, trap, recipe, changes):
    first = tmp_path / "first"
    train(RunConfig.load(recipe, [*SHORT, *changes]), first)
    expected = plain_network(first).module.state_dict()
    folder = tampered(first, tmp_path / "theirs", "model.name")
    data = parse_yaml((folder / "config.yaml").read_text(), "it")
    data["data"]["name"], data["log"]["own"] = f"{TRAP}:loaders", [f"{TRAP}:Logger"]
    (folder / "config.yaml").write_text(write_yaml(data))
    weights = read_weights(folder, wanted_by=RunConfig.load("digits/dense", SHORT))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[key], expected[key]) for key in weights)
    assert "digits from" in plan_text(RunConfig.load("digits/dense", [*SHORT, f"model.weights={folder}"]))
    assert train(RunConfig.load("digits/dense", [*SHORT, f"model.weights={folder}"]), tmp_path / "second").finished
    assert not trap()


def test_the_weights_of_another_network_are_refused(plain):
    with pytest.raises(ValueError, match=r"model\.weights: the weights of .* are not those of .* missing"):
        plan_text(RunConfig.load("digits/dense", [*SHORT, "model=small_cnn", f"model.weights={plain}"]))


@pytest.mark.parametrize("place", ["base", "changes", "search"])
def test_a_sweep_file_is_a_strangers_word_too(tmp_path, trap, place):
    name = f"{TRAP}:net"
    (tmp_path / "base.yaml").write_text(
        RunConfig.load("digits/str", [*SHORT, *([f"model={name}"] if place == "base" else [])]).dump()
    )
    file = tmp_path / "sweep.yaml"
    changes = {"model": name} if place == "changes" else {}
    search = {"model": ["digits", {"name": name}]} if place == "search" else {"seed": [0, 1]}
    file.write_text(
        write_yaml({"name": "it", "base": "base.yaml", "sampler": "grid", "changes": changes, "search": search})
    )
    with pytest.raises(ValueError, match=rf"yaml names Python code .*{TRAP}:net.*--trust"):
        Sweep.load(file)
    assert Sweep.load(file, trust=True).trials == 2
    assert not trap()
