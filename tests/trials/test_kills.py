"""A fixed share of kills.py in the normal tests, and that disturbances do what they say."""

from __future__ import annotations

import errno
import signal
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("children are forked, and their memory is limited, as Linux does it", allow_module_level=True)

import kills
from disturbance import FAULTS, Disturbance, Ending, run
from disturbed import Saving, WrongError, all_tasks, check_names, check_whole, check_words

from softprune.records import write_text


def write_two(folder):
    def action():
        write_text(folder / "a.json", '{"a": 1}\n')
        write_text(folder / "b.json", '{"b": 2}\n')

    return action


@pytest.fixture
def folder(tmp_path):
    """A folder of a case; what a child prints goes beside it."""
    made = tmp_path / "case"
    made.mkdir()
    return made


def test_calls_are_counted(folder):
    ending = run(write_two(folder), folder)
    # Each: open, write, open for the sync, the sync, the renaming.
    assert (ending.code, ending.calls) == (0, 10)
    assert sorted(path.name for path in folder.iterdir()) == ["a.json", "b.json"]


@pytest.mark.parametrize("at", range(1, 11))
def test_a_kill_at_any_call_leaves_whole_files(folder, at):
    for after in (False, True):
        ending = run(write_two(folder), folder, Disturbance("call", at, after=after))
        assert ending.code == -signal.SIGKILL
        check_whole(folder)
    assert (folder / "a.json").exists() or at <= 5


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("at", [1, 2, 4, 5, 7, 10])
def test_a_fault_at_any_call_is_raised_and_leaves_nothing_else(folder, kind, at):
    ending = run(write_two(folder), folder, Disturbance(kind, at))
    assert ending.code == 70 and f"[Errno {FAULTS[kind]}]" in ending.said
    assert sorted(path.name for path in folder.iterdir()) == ["a.json"][: at > 5]


def test_a_limit_reaches_every_writer(folder):
    def action():
        (folder / "large").write_bytes(bytes(10_000))

    ending = run(action, folder, Disturbance("limit", 5000))
    assert ending.code == 70 and f"[Errno {errno.EFBIG}]" in ending.said


def test_a_moment_kills(folder):
    ending = run(signal.pause, folder, Disturbance("moment", 0.05))
    assert ending.code == -signal.SIGKILL


@pytest.mark.parametrize(
    ("code", "said", "fine"),
    [
        (1, "error: no space left\n", True),
        (0, "", True),
        (1, "Traceback (most recent call last):\nOSError: no\n", False),
        (1, "error: a\nerror: b\n", False),
        (70, "", False),
        (-11, "", False),
    ],
)
def test_what_a_command_may_say(code, said, fine):
    ending = Ending(code, said, 0, 0.0)
    if fine:
        check_words(ending, Disturbance("EIO", 1))
        assert ending.code in (0, 1)
        return
    with pytest.raises(WrongError):
        check_words(ending, Disturbance("EIO", 1))


def test_files_that_are_left_over_are_seen(tmp_path):
    for name in ("mine", "whole"):
        (tmp_path / name).mkdir()
    check_names(tmp_path / "mine", tmp_path / "whole")
    (tmp_path / "mine" / ".a.part").write_text("")
    with pytest.raises(WrongError, match=r"left over \['.a.part'\]"):
        check_names(tmp_path / "mine", tmp_path / "whole")


def test_a_file_that_is_not_whole_is_seen(tmp_path):
    (tmp_path / "result.json").write_text('{"a": ')
    with pytest.raises(WrongError, match=r"result.json is not whole"):
        check_whole(tmp_path)


def test_a_fixed_share_of_the_cases(tmp_path):
    trial = kills.Trial(Saving("Sparsifier.save", 1), tmp_path / "save", seed=0)
    outcomes = [trial.case(number) for number in range(6)]
    assert all(finding is None for _, finding in outcomes), outcomes
    assert "continued" in {outcome for outcome, _ in outcomes}


def test_a_fixed_share_of_what_is_done_to_commands(tmp_path):
    tasks = {task.name: task for task in all_tasks(tmp_path)}
    outcomes = set()
    for name in ("resume", "bake", "export spx"):
        trial = kills.Trial(tasks[name], tmp_path / name.replace(" ", "_"), seed=0)
        found = [trial.case(number) for number in range(2)]
        assert all(finding is None for _, finding in found), found
        outcomes |= {outcome for outcome, _ in found}
    assert outcomes & {"continued", "unharmed"}


def test_the_help_teaches(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(Path(kills.__file__)), "--help"])
    with pytest.raises(SystemExit):
        kills.main()
    assert "RLIMIT_FSIZE" in capsys.readouterr().out
