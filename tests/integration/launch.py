"""Processes under torchrun, on one machine and one thread each."""

import os
import subprocess
import sys


def torchrun(processes, *words):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes, *words]
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done
