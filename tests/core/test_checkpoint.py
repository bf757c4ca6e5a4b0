"""Saving and continuing: bit for bit, in a fresh process, or refused with nothing changed."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import warm
from softprune.budget.budget import Budget
from softprune.core.bake import bake
from softprune.core.rule import Rule
from softprune.core.sparsify import sparsify
from softprune.core.state_file import STATE_FILE, write_state
from softprune.methods import STR
from softprune.ops import Custom, Exp, Sigmoid, Softplus
from softprune.records import write_whole

pytestmark = pytest.mark.filterwarnings("ignore::softprune.forecast.forecast.ForecastWarning")

WORKER = Path(__file__).parents[1] / "integration" / "workers" / "resume.py"


def _net():
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 6)
        self.twice = nn.Linear(6, 6)
        self.again = self.twice  # one module under two names: its keys appear twice
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.again(self.twice(self.embedding(tokens)).relu()))


def _moved(model, step=7):
    """As after some training: thresholds that differ, weights that moved."""
    with torch.no_grad():
        for n, (name, p) in enumerate(model.named_parameters()):
            if name.endswith(".0.s"):
                p.fill_(-2.0 - 0.25 * n)
            else:
                p.add_(0.01 * torch.randn_like(p))


def _picture(sparsifier):
    model = sparsifier.model
    return (
        {name: t.clone() for name, t in model.state_dict().items()},
        {name: id(p) for name, p in model.named_parameters()},
        [(t.name, type(t.transform), getattr(t.transform, "g", None)) for t in sparsifier.targets],
        (sparsifier.step, sparsifier.frozen, sparsifier.total_steps),
    )


def _unchanged(sparsifier, picture):
    now = _picture(sparsifier)
    assert list(now[0]) == list(picture[0])
    assert all(torch.equal(now[0][name], t) for name, t in picture[0].items())
    assert now[1:] == picture[1:]


def _refused(sparsifier, folder, match):
    picture = _picture(sparsifier)
    with pytest.raises(ValueError, match=match):
        sparsifier.load(folder)
    _unchanged(sparsifier, picture)


# continuing in a fresh process


def _run(*arguments):
    warm.run(WORKER, *arguments)
    return load_file(arguments[0] / f"{arguments[1]}.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_two_halves_in_two_processes_are_one_run_bit_for_bit(tmp_path, optimizer):
    """Each case of the worker: plain, each freeze, tied weights, one global threshold, k taken from the weights."""
    whole = _run(tmp_path, "whole", optimizer)
    _run(tmp_path, "first", optimizer)
    second = _run(tmp_path, "second", optimizer)
    assert set(second) == set(whole)
    assert len({name.split("/")[0] for name in whole}) == 8
    differing = [name for name in whole if not torch.equal(whole[name], second[name])]
    assert not differing


# what a folder holds


def test_a_saved_folder_loads_into_a_model_of_the_same_kind(tmp_path):
    sparsifier = sparsify(_net(), STR(s_init=-3.0))
    _moved(sparsifier.model)
    sparsifier.save(tmp_path / "deep" / "folder")
    other = sparsify(_net(), STR(s_init=-3.0))
    other.load(tmp_path / "deep" / "folder")
    for (name, a), b in zip(sparsifier.model.state_dict().items(), other.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    x = torch.randn(5, 6)
    assert torch.equal(sparsifier.model.eval()(x), other.model.eval()(x))
    budget = Budget.load(tmp_path / "deep" / "folder" / "budget.json")
    assert dict(budget.densities) == dict(sparsifier.measure().densities)
    assert 0 < budget.densities["0.weight"] < 1


@pytest.mark.parametrize("what", [None, "thresholds", "support", "budget"])
@pytest.mark.parametrize("granularity", ["tensor", "filter", "weight", "global"])
def test_every_freeze_and_granularity_survives(tmp_path, granularity, what):
    sparsifier = sparsify(_net(), STR(s_init=-3.0, granularity=granularity))
    _moved(sparsifier.model)
    if what:
        sparsifier.freeze(what)
    sparsifier.save(tmp_path)
    other = sparsify(_net(), STR(s_init=-3.0, granularity=granularity))
    other.load(tmp_path)
    assert other.frozen == what
    assert list(other.model.state_dict()) == list(sparsifier.model.state_dict())
    x = torch.randn(5, 6)
    assert torch.equal(sparsifier.model.eval()(x), other.model.eval()(x))
    assert dict(other.measure().densities) == dict(sparsifier.measure().densities)
    requires = [p.requires_grad for p in sparsifier.model.parameters()]
    assert [p.requires_grad for p in other.model.parameters()] == requires
    other.load(tmp_path)  # again, into a model that is frozen already
    assert torch.equal(bake(other.model)(x), sparsifier.model(x))


@pytest.mark.parametrize("what", [None, "support", "budget"])
def test_tensors_under_several_names_survive(tmp_path, what):
    method = STR(s_init=-3.0, granularity="global")
    sparsifier = sparsify(Tied(), method)
    _moved(sparsifier.model)
    if what:
        sparsifier.freeze(what)
    sparsifier.save(tmp_path)
    other = sparsify(Tied(), method)
    other.load(tmp_path)
    tokens = torch.arange(9)
    assert torch.equal(sparsifier.model(tokens), other.model(tokens))
    lists = [other.model.embedding.parametrizations.weight, other.model.head.parametrizations.weight]
    assert lists[0].original is lists[1].original
    assert lists[0][0] is lists[1][0]


@pytest.mark.parametrize("g", [Sigmoid("auto"), Exp("auto"), Softplus("auto")])
def test_a_scale_taken_from_the_weights_is_that_of_the_saved_run(tmp_path, g):
    """k="auto" looks at the weights a run starts with; the run that continues starts with others."""
    sparsifier = sparsify(_net(), STR(s_init=-1.0, g=g))
    with torch.no_grad():
        other_start = _net()
        for p in other_start.parameters():
            p.mul_(3.0)
    other = sparsify(other_start, STR(s_init=-1.0, g=g))
    scales = [t.transform.g.scale for t in sparsifier.targets]
    assert [t.transform.g.scale for t in other.targets] != scales
    sparsifier.save(tmp_path)
    other.load(tmp_path)
    assert [t.transform.g.scale for t in other.targets] == scales
    x = torch.randn(5, 6)
    assert torch.equal(sparsifier.model.eval()(x), other.model.eval()(x))


def test_saving_and_measuring_change_nothing():
    sparsifier = sparsify(_net(), STR(s_init=-2.0))
    sparsifier.freeze("budget")
    with torch.no_grad():
        for target in sparsifier.targets:
            target.raw.add_(0.05 * torch.randn_like(target.raw))
    picture = _picture(sparsifier)
    kept = {t.name: int(t.transform.kept) / t.raw.numel() for t in sparsifier.targets}
    in_use = {t.name: int(t.effective.count_nonzero()) / t.raw.numel() for t in sparsifier.targets}
    assert in_use != kept, "the weights have moved across the threshold"
    assert dict(sparsifier.measure().densities) == kept
    _unchanged(sparsifier, picture)
    x = torch.randn(4, 6)
    baked = sparsifier.bake().eval()
    assert {f"{n}.weight": int(baked[n].weight.count_nonzero()) / baked[n].weight.numel() for n in (0, 3)} == kept
    assert baked(x).isfinite().all()


def test_the_state_is_json_and_says_what_the_model_cannot(tmp_path):
    sparsifier = sparsify(_net(), STR(s_init=-3.0), rules=[Rule("3", g=Exp())])
    state = json.loads(json.dumps(sparsifier.state_dict()))
    other = sparsify(_net(), STR(s_init=-3.0), rules=[Rule("3", g=Exp())])
    other.load_state_dict({**state, "step": 5})
    assert other.step == 5
    other.model.load_state_dict(sparsifier.model.state_dict())
    x = torch.randn(5, 6)
    assert torch.equal(sparsifier.model.eval()(x), other.model.eval()(x))


def test_states_in_the_order_that_the_docs_name(tmp_path):
    sparsifier = sparsify(_net(), STR(s_init=-3.0))
    _moved(sparsifier.model)
    sparsifier.freeze("support")
    torch.save({"model": sparsifier.model.state_dict(), "sparsifier": sparsifier.state_dict()}, tmp_path / "c.pt")
    saved = torch.load(tmp_path / "c.pt")
    other = sparsify(_net(), STR(s_init=-3.0))
    other.load_state_dict(saved["sparsifier"])
    other.model.load_state_dict(saved["model"])
    x = torch.randn(5, 6)
    assert torch.equal(sparsifier.model.eval()(x), other.model.eval()(x))


# refusals


@pytest.fixture
def saved(tmp_path):
    sparsifier = sparsify(_net(), STR(s_init=-3.0))
    _moved(sparsifier.model)
    sparsifier.save(tmp_path)
    return tmp_path


def _fresh(**settings):
    return sparsify(_net(), STR(**{"s_init": -3.0, **settings}))


@pytest.mark.parametrize("bytes_left", [0, 4, 40, 300, -1])
def test_a_truncated_file_is_refused(saved, bytes_left):
    path = saved / STATE_FILE
    path.write_bytes(path.read_bytes()[:bytes_left])
    _refused(_fresh(), saved, "is damaged or no safetensors file")


def test_a_file_that_is_something_else_is_refused(saved):
    (saved / STATE_FILE).write_text("{}" * 100)
    _refused(_fresh(), saved, "is damaged or no safetensors file")


def test_a_folder_without_a_state_is_refused(tmp_path):
    _refused(_fresh(), tmp_path, f"has no {STATE_FILE}")


def test_a_foreign_safetensors_file_is_refused(saved):
    save_file({"0.weight": torch.zeros(16, 6)}, saved / STATE_FILE)
    _refused(_fresh(), saved, "holds tensors alone")


def _rewrite(folder, change_header=None, change_tensors=None):
    path = folder / STATE_FILE
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        header = json.loads(metadata["softprune"])
    tensors = load_file(path)
    text = json.dumps(header)
    if change_header:
        text = change_header(header)
        text = text if isinstance(text, str) else json.dumps(text)
    if change_tensors:
        change_tensors(tensors)
        write_state(path, tensors, header)
        return
    # As a release wrote it that had no digest of the facts; with one, any change is noticed by that.
    save_file(tensors, path, metadata={"crc32": metadata["crc32"], "softprune": text})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda h: h | {"format": "other"}, "is not a softprune-state"),
        (lambda h: h | {"version": 99}, "state version 99 is unknown"),
        (lambda h: {k: v for k, v in h.items() if k != "targets"}, "it has no targets"),
        (lambda h: {k: v for k, v in h.items() if k != "step"}, "it has no step"),
        (lambda h: {k: v for k, v in h.items() if k != "scales"}, "it has no scales"),
        (lambda h: json.dumps(h)[:-10], "is not valid JSON"),
        (lambda h: "[]", "not an object"),
        (lambda h: h | {"frozen": "solid"}, "frozen"),
        (lambda h: h | {"step": -1}, "step"),
        (lambda h: h | {"step": "7"}, "step"),
        (lambda h: h | {"scales": {}}, "scales"),
        (lambda h: h | {"targets": []}, "targets"),
        (lambda h: h | {"method": {"method": "unheard-of"}}, "unknown method"),
        (lambda h: h | {"method": {"method": ["str"]}}, "unknown method"),
        (lambda h: h | {"method": 7}, "its method is 7"),
        (lambda h: h | {"memories": [0.5] * len(h["memories"])}, "memories"),
    ],
)
def test_a_damaged_header_is_refused(saved, change, match):
    _rewrite(saved, change_header=change)
    _refused(_fresh(), saved, match)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: t.pop("1.running_mean"), r"the first is 1\.running_mean \(\(16,\) here, absent in the file\)"),
        (lambda t: t.update(extra=torch.zeros(2)), r"the first is extra \(absent here, \(2,\) in the file\)"),
        (lambda t: t.update({"3.bias": torch.zeros(5)}), r"the first is 3\.bias"),
        (lambda t: t.update({"3.parametrizations.weight.0.s": torch.zeros(4, 1)}), r"weight\.0\.s"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(saved, change, match):
    _rewrite(saved, change_tensors=change)
    _refused(_fresh(), saved, match)


@pytest.mark.parametrize("what", ["support", "budget"])
def test_a_frozen_state_with_tensors_that_do_not_fit_does_not_freeze(tmp_path, what):
    sparsifier = _fresh()
    sparsifier.freeze(what)
    sparsifier.save(tmp_path)
    _rewrite(tmp_path, change_tensors=lambda t: t.pop("1.running_mean"))
    _refused(_fresh(), tmp_path, "does not fit this model")


def test_another_method_is_refused(saved):
    _refused(_fresh(s_init=-4.0), saved, "was saved with")
    _refused(_fresh(granularity="filter"), saved, "was saved with")
    _refused(_fresh(g=Exp()), saved, "was saved with")


def test_other_rules_are_refused(saved):
    for rule in (Rule("3", g=Exp()), Rule("3", granularity="filter"), Rule("3", min_keep=2)):
        _refused(sparsify(_net(), STR(s_init=-3.0), rules=[rule]), saved, r"presence, shape or rules: 3\.weight")


def test_another_model_is_refused(saved):
    wider = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))
    _refused(sparsify(wider, STR(s_init=-3.0)), saved, r"presence, shape or rules: 3\.weight")
    _refused(sparsify(nn.Linear(6, 16), STR(s_init=-3.0)), saved, "presence, shape or rules")
    _refused(sparsify(_net(), STR(s_init=-3.0), skip="3"), saved, r"presence, shape or rules: 3\.weight")


def test_a_sparsifier_frozen_otherwise_is_refused(saved):
    sparsifier = _fresh()
    sparsifier.freeze("support")
    _refused(sparsifier, saved, "frozen")


def test_a_state_that_no_file_can_hold_is_refused_and_writes_nothing(tmp_path):
    sparsifier = sparsify(_net(), STR(s_init=-3.0, g=Custom()))
    with pytest.raises(ValueError, match="Custom g"):
        sparsifier.save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_module_with_a_state_that_is_no_tensor_is_refused_by_name(tmp_path):
    class Strange(nn.Linear):
        def get_extra_state(self):
            return {"a": 1}

        def set_extra_state(self, state):
            pass

    sparsifier = sparsify(nn.Sequential(Strange(4, 4)), STR())
    with pytest.raises(ValueError, match=r"0\._extra_state is no tensor"):
        sparsifier.save(tmp_path)
    assert list(tmp_path.iterdir()) == []


# whole or not at all


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def write(temporary):
        temporary.write_text("half")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        write_whole(path, write)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_writer_that_never_wrote_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(FileNotFoundError):
        write_whole(path, lambda temporary: None)
    assert path.read_text() == "old"


def test_a_failing_save_keeps_the_state_of_the_last_one(saved, monkeypatch):
    before = (saved / STATE_FILE).read_bytes()
    sparsifier = _fresh()

    def fail(tensors, path, metadata):
        Path(path).write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr("softprune.core.state_file.save_file", fail)
    with pytest.raises(OSError, match="no space left"):
        sparsifier.save(saved)
    assert (saved / STATE_FILE).read_bytes() == before
    assert sorted(p.name for p in saved.iterdir()) == ["budget.json", STATE_FILE]


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    """The temporary file may stay behind; the file under its own name is whole."""
    path = tmp_path / "file"
    path.write_text("old")
    code = (
        "import os, pathlib, signal, sys\n"
        "from softprune.records import write_whole\n"
        "def write(temporary):\n"
        "    temporary.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_whole(pathlib.Path(sys.argv[1]), write)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], timeout=120)
    assert done.returncode == -9
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2
    write_whole(path, lambda temporary: (temporary.write_text("new"), None)[1])
    assert path.read_text() == "new"


def test_the_method_of_a_state_is_the_method():
    sparsifier = sparsify(_net(), STR(s_init=-3.0, g=Exp(2.0), granularity="filter"))
    other = sparsify(_net(), dataclasses.replace(sparsifier.method))
    other.load_state_dict(sparsifier.state_dict())
    assert other.state_dict() == sparsifier.state_dict()
