"""Commands in processes of their own that are forked from one with everything imported: most of their time is imports.

What a command does from there to its end is what a fresh interpreter does: its own session, environment, folder and
streams, exit handlers and exit code. Tests of what happens before (start-up, what is imported) start Python.
"""

import contextlib
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

IMPORTS = (
    "torch.distributed", "torch._dynamo", "torch.export._trace", "torch._inductor.decomposition", "softprune.cli",
    "softprune.train.run", "softprune.deploy.export", "sklearn.datasets",
)  # fmt: skip


class Process:
    """A forked command, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, server, words, env=None, cwd=None, largest_file=None):
        self._server, self._folder, self.args = server, Path(tempfile.mkdtemp()), [str(word) for word in words]
        self.returncode = None
        streams = [str(self._folder / name) for name in ("out", "err")]
        here = {"env": env or dict(os.environ), "cwd": str(cwd or Path.cwd()), "streams": streams}
        here["largest_file"] = largest_file
        self.pid = server.ask(do="start", words=self.args, **here)

    def poll(self):
        if self.returncode is None:
            self.returncode = self._server.ask(do="poll", pid=self.pid)
        return self.returncode

    def kill(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout=300):
        """Its exit code; one that takes longer is killed."""
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                self.kill()
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.005)
        return self.returncode

    def done(self, timeout=300):
        """Wait for it: exit code and what it printed."""
        code = self.wait(timeout)
        return subprocess.CompletedProcess(self.args, code, *((self._folder / n).read_text() for n in ("out", "err")))


class Server:
    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def ask(self, **request):
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


@cache
def server():
    """The one of this process of pytest; it ends when that ends, which closes its input."""
    return Server()


def start(*words, **where):
    """Start ``python WORDS``."""
    return Process(server(), words, **where)


def run(*words, check=True, **where):
    """Run ``python WORDS``, as `subprocess.run` would."""
    done = start(*words, **where).done()
    assert not check or done.returncode == 0, done.stderr[-4000:]
    return done


def run_on_two(*words, check=True):
    """Run ``python WORDS`` in two processes that find each other as those of torchrun do."""
    port, holder = server().ask(do="store")
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    ranks = [start(*words, env={**os.environ, **shared, "RANK": str(n), "LOCAL_RANK": str(n)}) for n in range(2)]
    try:
        # One that fails is the end of both.
        while any(process.poll() is None for process in ranks) and not any(process.poll() for process in ranks):
            time.sleep(0.01)
    finally:
        for process in ranks:
            process.kill()
        os.kill(holder, signal.SIGKILL)
    first, *others = [process.done() for process in ranks]
    failed = next((done for done in (first, *others) if done.returncode > 0), first)
    assert not check or failed.returncode == 0, failed.stderr[-4000:]
    return failed


def _serve():
    """Answer requests until there are none; a child comes back with the words it is to run."""
    for line in sys.stdin:
        request, answer = json.loads(line), None
        if request["do"] == "start":
            answer = os.fork()
            if answer == 0:
                return _become(**request)
        elif request["do"] == "poll":
            found, status = os.waitpid(request["pid"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if found else None
        elif request["do"] == "store":
            answer = _hold_store()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return None


def _become(words, env, cwd, streams, largest_file, **_):
    os.setsid()
    for number, path in enumerate((os.devnull, *streams)):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, closefd=False) for n, mode in enumerate("rww"))
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    if largest_file is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    return words


def _hold_store():
    """The port of a store that a child of its own keeps until it is killed, and that child's number."""
    import torch.distributed as dist

    reading, writing = os.pipe()
    holder = os.fork()
    if holder == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writing, f"{store.port}\n".encode())
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return int(pipe.readline()), holder


def _main():
    for name in IMPORTS:
        importlib.import_module(name)
    words = _serve()
    if words is None:
        return
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = str(Path(words[0]).parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    _main()
