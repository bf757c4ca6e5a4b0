"""Ways to come to the end of a process: ``leaving.py FOLDER`` leaves the exit codes and words of each in cases.json.

Every case is one or two children of this process, which has imported torch for all of them; and one process more,
which ends in the usual way, shows what the others are spared.
"""

import atexit
import json
import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist

from softprune.train.assembly import run_and_leave


class Trap:
    """Ends the process as a thread of gloo does that lets go of a tensor while the interpreter is taken down."""

    def __del__(self):
        os.abort()


def _set_trap():
    sys.modules["trap"] = Trap()


def _usual():
    _set_trap()
    sys.stdout.write("all results written\n")


def _ends():
    _usual()
    atexit.register(print, "the exit handler ran")


def _handler_fails():
    atexit.register(lambda: 1 / 0)


def _says_three():
    sys.exit(3)


def _says_a_sentence():
    sys.exit("this cannot work")


def _fails():
    _set_trap()
    raise LookupError("nothing of that name")


def _both_end(rank):
    _set_trap()


def _second_fails(rank):
    if rank == 1:
        raise LookupError("nothing of that name")


def _second_is_killed(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def _second_never_ends(rank):
    if rank == 1:
        signal.pause()


def _start(folder, name, rank, main):
    """A child with its own words file."""
    child = os.fork()
    if child:
        return child
    words = os.open(folder / f"{name} {rank}.txt", os.O_CREAT | os.O_WRONLY)
    os.dup2(words, 1)
    os.dup2(words, 2)
    run_and_leave(main, patience=2.0)


def _together(folder, name, rank, main):
    def act():
        store = dist.FileStore(str(folder / f"{name} store"), 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        # Nobody ends before all are connected: that would be a failure to begin.
        store.set(f"connected {rank}", "yes")
        store.wait(["connected 0", "connected 1"])
        main(rank)

    return _start(folder, name, rank, act)


def _case(folder, name, children):
    codes = []
    for child in children:
        if name == "second never ends" and codes:
            os.kill(child, signal.SIGTERM)  # the first has not waited for it
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return {"codes": codes, "words": [(folder / f"{name} {rank}.txt").read_text() for rank in range(len(codes))]}


def main():
    folder = Path(sys.argv[1])
    # The streams of the children are not terminals: what they print stays in a buffer until it is flushed.
    alone = {
        "ends": _ends,
        "handler fails": _handler_fails,
        "says three": _says_three,
        "says a sentence": _says_a_sentence,
        "fails": _fails,
    }
    pairs = {
        "both end": _both_end,
        "second fails": _second_fails,
        "second is killed": _second_is_killed,
        "second never ends": _second_never_ends,
    }
    found = {name: _case(folder, name, [_start(folder, name, 0, act)]) for name, act in alone.items()}
    for name, act in pairs.items():
        found[name] = _case(folder, name, [_together(folder, name, rank, act) for rank in (0, 1)])
    (folder / "cases.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
    _usual()
