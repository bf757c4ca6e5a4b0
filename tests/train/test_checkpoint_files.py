"""Checkpoints of a run that are damaged, foreign or newer: noticed, named, kept, and never taken for good ones."""

import json
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from test_run import Watcher, assert_same_run, config, crash, whole_run  # noqa: F401 - a fixture

from softprune.core.state_file import read_state, write_state
from softprune.train.checkpoints import Checkpoints, read_checkpoint
from softprune.train.load_run import evaluate_run
from softprune.train.run import resume, train


def contents(path):
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118 - not a mapping


def another_step(path):
    """One digit of the facts, as a flipped bit would change it."""
    content = path.read_bytes()
    before, after = rb"\"progress\": {\"step\": 10", rb"\"progress\": {\"step\": 14"
    assert content.count(before) == 1
    path.write_bytes(content.replace(before, after))


def newer(path):
    tensors, facts = read_state(path)
    write_state(path, tensors, {**facts, "version": 2})


def foreign(path):
    save_file({"w": torch.zeros(3)}, path, metadata={"format": "pt"})


def incomplete(path):
    tensors, facts = read_state(path)
    write_state(path, tensors, {key: value for key, value in facts.items() if key != "random"})


def of_another_step(path):
    tensors, facts = read_state(path)
    write_state(path, tensors, {**facts, "progress": {**facts["progress"], "step": 14}})


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crashed") / "run"
    with pytest.raises(RuntimeError, match="pulled the plug"):
        train(config(), folder, observer=Watcher(at_step=12, act=crash))
    return folder


@pytest.mark.parametrize("harm", [another_step, newer, foreign, incomplete, of_another_step])
def test_what_cannot_be_read_is_named_and_kept_aside(crashed, tmp_path, whole_run, harm):  # noqa: F811
    run = shutil.copytree(crashed, tmp_path / "run")
    path = run / "checkpoints" / "step-000000010.safetensors"
    harm(path)
    content = path.read_bytes()
    watcher = Watcher()
    resume(run, observer=watcher)
    assert watcher.steps[0].step == 6
    (note,) = (note for note in watcher.notes if "going back to the checkpoint before it" in note)
    assert "step-000000010.safetensors" in note
    assert "step-000000010.safetensors is kept as step-000000010.safetensors.unreadable" in watcher.notes
    assert path.with_name(f"{path.name}.unreadable").read_bytes() == content
    # The one that was set aside does not take the place of a good one.
    kept = Checkpoints(run / "checkpoints", keep=2).regular()
    assert [p.name for p in kept] == ["step-000000010.safetensors", "step-000000015.safetensors"]
    assert all(read_checkpoint(p) for p in kept)
    assert_same_run(whole_run[0], run)


def test_a_random_state_that_is_too_short_is_refused(crashed, tmp_path):
    run = shutil.copytree(crashed, tmp_path / "run")
    for path in (run / "checkpoints").glob("step-*"):
        tensors, facts = read_state(path)
        state = facts["random"][0]["numpy"]
        state["key"] = state["key"][:600]
        write_state(path, tensors, facts)
    with pytest.raises(ValueError, match="its random state cannot be set"):
        resume(run)


@pytest.mark.parametrize(
    "change",
    [
        {"progress": None}, {"progress": {"step": "ten"}}, {"optimizer": 7}, {"optimizer": {"0.weight": 7}},
        {"scaler": 1.5}, {"sparsifier": [1]}, {"random": 3}, {"random": [7]}, {"random": [{"torch": "00"}]},
        {"random": [{}]},
    ],
    ids=str,
)  # fmt: skip
def test_facts_of_another_kind_are_refused(crashed, tmp_path, change):
    run = shutil.copytree(crashed, tmp_path / "run")
    for path in (run / "checkpoints").glob("step-*"):
        tensors, facts = read_state(path)
        write_state(path, tensors, {**facts, **change})
    with pytest.raises(ValueError, match=r"damaged|cannot be read|none of the"):
        resume(run)


def test_a_file_that_was_set_aside_is_never_replaced(crashed, tmp_path):
    run = shutil.copytree(crashed, tmp_path / "run")
    aside = run / "checkpoints" / "step-000000010.safetensors.unreadable"
    aside.write_text("of another day")
    foreign(run / "checkpoints" / "step-000000010.safetensors")
    resume(run)
    assert aside.read_text() == "of another day"
    assert aside.with_name(f"{aside.name}-2").is_file()


def test_a_run_is_not_begun_anew_when_no_checkpoint_can_be_read(crashed, tmp_path, whole_run):  # noqa: F811
    run = shutil.copytree(crashed, tmp_path / "run")
    for path in (run / "checkpoints").glob("step-*"):
        foreign(path)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    for act in (resume, evaluate_run):
        with pytest.raises(ValueError, match=r"none of the 2 checkpoints in .*holds tensors alone.*To begin .* anew"):
            act(run)
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    shutil.move(run / "checkpoints", tmp_path / "away")
    resume(run)
    assert_same_run(whole_run[0], run)


def test_checkpoints_of_older_releases_go_on_with_a_note(crashed, tmp_path, whole_run):  # noqa: F811
    run = shutil.copytree(crashed, tmp_path / "run")
    path = run / "checkpoints" / "step-000000010.safetensors"
    tensors, header = contents(path)
    del header["sha256"]
    save_file(tensors, path, metadata=header)
    watcher = Watcher()
    resume(run, observer=watcher)
    assert watcher.steps[0].step == 11
    assert any("is of an older release" in note and "such as the step" in note for note in watcher.notes)
    assert_same_run(whole_run[0], run)


def test_no_byte_of_a_file_can_change_unnoticed(tmp_path):
    path = tmp_path / "state.safetensors"
    tensors = {"a": torch.arange(6, dtype=torch.float32).reshape(2, 3), "b": torch.zeros(0), "c": torch.tensor(True)}
    facts = {"step": 17, "name": "x"}
    write_state(path, tensors, facts)
    whole = path.read_bytes()
    noticed = 0
    for place in range(len(whole)):
        for bit in (0, 5):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1 :])
            try:
                found, said = read_state(path)
            except ValueError:
                noticed += 1
                continue
            # A space between two words of the header may become another space, and that is all.
            assert said == facts and found.keys() == tensors.keys(), (place, bit)
            assert all(torch.equal(found[key], tensors[key]) for key in tensors), (place, bit)
    assert noticed > 1.9 * len(whole.rstrip())


def test_the_digest_depends_on_the_facts_alone_where_tensors_agree(tmp_path):
    for name, step in (("one", 16), ("two", 17)):
        write_state(tmp_path / name, {"a": torch.ones(2)}, {"step": step})
    (_, one), (_, two) = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert one["crc32"] == two["crc32"] and one["sha256"] != two["sha256"]
    assert json.loads(one["softprune"]) == {"step": 16}


def test_a_new_run_does_not_begin_among_the_checkpoints_of_another(crashed, tmp_path):
    run = shutil.copytree(crashed, tmp_path / "run")
    (run / "config.yaml").unlink()
    before = sorted(run.rglob("*"))
    with pytest.raises(ValueError, match=r"holds checkpoints of a run whose config\.yaml is missing: move them away"):
        train(config(), run)
    assert sorted(run.rglob("*")) == before
