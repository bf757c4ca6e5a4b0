"""A fixed share of formats.py in the normal tests, and that its means work: cases, mutations, children that die."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("children are forked, and their memory is limited, as Linux does it", allow_module_level=True)

import formats
from conduct import Block, Book, run_block
from mutations import BY_KIND

SEED = 1
# Cases of each format that are tried here.
CASES = {
    **dict.fromkeys(("budget JSON", "budget CSV", "table of times", "bench JSON"), 40),
    **dict.fromkeys(("state file", "weights", "torch file", "torch file, legacy"), 40),
    "compressed tensors": 100,  # checksums refuse nineteen of twenty
    **dict.fromkeys(("idx", "idx, compressed", "CIFAR pickle", "wav", "image", "spx"), 40),
    **dict.fromkeys(("config YAML", "sweep YAML", "tuning cache", "run metrics.jsonl", "run layers.csv"), 20),
    **dict.fromkeys(("run result.json", "run environment.json", "run config.yaml", "run budget.json"), 10),
    **dict.fromkeys(("run latency.json", "CIFAR binary", "features zip", "HAR text", "HAR zip"), 10),
    **dict.fromkeys(("checkpoint", "checkpoint facts", "sparsifier folder", "hub config.json"), 8),
    "hub model.safetensors": 5,
}


@pytest.fixture(scope="module")
def all_formats(tmp_path_factory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = os.environ.get("SOFTPRUNE_CACHE")
        yield formats.all_formats(tmp_path_factory.mktemp("formats"), slow=False)
        os.environ.pop("SOFTPRUNE_CACHE")
        if before is not None:
            os.environ["SOFTPRUNE_CACHE"] = before


def test_valid_files_are_read(all_formats, tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTPRUNE_CACHE", str(tmp_path))
    for form in all_formats:
        folder = tmp_path / form.name
        folder.mkdir()
        outcomes = {form.read(content, which, folder, random.Random(1)) for which, content in enumerate(form.seeds)}
        assert outcomes == {"read"}, form.name


def test_a_case_is_its_format_seed_and_number(all_formats):
    for form in all_formats:
        assert formats.make_case(form, SEED, 3)[:2] == formats.make_case(form, SEED, 3)[:2]
        assert len({formats.make_case(form, SEED, number)[1] for number in range(30)}) > 10, form.name


@pytest.mark.parametrize("kind", BY_KIND)
def test_every_mutation_changes_most_files(all_formats, kind):
    seeds = [content for form in all_formats if form.kind == kind for content in form.seeds]
    for mutation in BY_KIND[kind]:
        changed = [mutation(content, random.Random(n)) != content for content in seeds for n in range(30)]
        assert sum(changed) > len(changed) // 2, mutation.__name__


def test_every_format_gets_its_share(all_formats):
    wanted = formats.shares(all_formats, 1_000_000)
    assert sum(wanted.values()) >= 1_000_000
    assert wanted["spx"] >= 50_000 and min(wanted.values()) >= 1


def _died(number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 5:
        while True:
            pass
    if number == 7:
        return "memory", {"what": "MemoryError: x", "at": "here"}
    return "read", None


def test_a_child_that_dies_costs_one_case(tmp_path):
    first, counts, found = 0, Counter(), []
    while first < 10:
        block = run_block(
            _died, first, 10, outcomes=formats.OUTCOMES, scratch=tmp_path, seconds=0.3, memory=formats.MEMORY
        )
        first = block.reached
        counts += block.counts
        found += [(finding["case"], finding["outcome"]) for finding in block.findings]
    assert counts == {"read": 7, "crash": 1, "hang": 1, "memory": 1}
    assert found == [(3, "crash"), (5, "hang"), (7, "memory")]


def test_memory_beyond_the_limit_is_refused(tmp_path):
    def greedy(number):
        try:
            bytearray(1 << 30)
        except MemoryError:
            return "memory", None
        return "read", None

    block = run_block(greedy, 0, 1, outcomes=formats.OUTCOMES, scratch=tmp_path, seconds=5, memory=1 << 28)
    assert block.counts == {"memory": 1}


def test_a_stopped_trial_goes_on_from_its_file(tmp_path):
    path = tmp_path / "trials" / "out.json"
    finding = {"case": 4, "outcome": "unexpected", "what": "KeyError: x", "at": "a.py:1 f"}
    Book(path, seed=SEED).add("one", Block(5, Counter(read=4, unexpected=1), [finding]))
    again = Book(path, seed=SEED)
    assert again.done("one") == 5 and again.done("two") == 0 and again.findings == 1
    assert Book(path, seed=SEED + 1).done("one") == 0
    assert json.loads(path.read_text())["groups"]["one"]["findings"] == [finding]


def test_every_format_is_named_here(all_formats):
    assert {form.name for form in all_formats} == set(CASES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_a_fixed_share_of_the_cases(all_formats, name, tmp_path, monkeypatch):
    # In this process: a fork of one that may have computed with threads would wait for them.
    monkeypatch.setenv("SOFTPRUNE_CACHE", str(tmp_path))
    form = next(form for form in all_formats if form.name == name)
    attempt = formats.attempt(form, SEED, tmp_path / "files", None)
    ended = {number: attempt(number) for number in range(CASES[name])}
    found = {number: finding for number, (_, finding) in ended.items() if finding is not None}
    assert found == {}
    # Neither so wild that nothing is read nor so tame that nothing is refused; of these two all must be right.
    outcomes = {outcome for outcome, _ in ended.values()}
    assert len(outcomes) > 1 or CASES[name] < 10 or name in ("tuning cache", "state file")


def test_the_help_teaches(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(Path(formats.__file__)), "--help"])
    with pytest.raises(SystemExit):
        formats.main()
    text = capsys.readouterr().out
    assert "--keep" in text and "goes on where a stopped one was" in text
