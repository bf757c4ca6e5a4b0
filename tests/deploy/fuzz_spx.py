"""Mutate .spx files and load them: each must be refused with ValueError or OSError, or run. Never crash.

    python tests/deploy/fuzz_spx.py --cases 100000 [--sanitize] [--seed 0]

With --sanitize the kernels are built with AddressSanitizer into a temporary folder and the cases run in a child
process with its runtime preloaded. Half of the mutations change bytes, half change numbers and texts of the graph.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "runtime"))

from spx_compare import sparse
from spx_files import op, write_net

from softprune.deploy.runtime.build import build, compiler
from softprune.deploy.runtime.engine import load

REST = {"bias": None, "activation": "relu", "residual": None}
NUMBERS = (-1, 0, 1, 2, 3, 7, 16, 255, 65536, 1 << 31, 1 << 63, 0.5, None, True, "x", [], [1, 1], {})
MAX_INPUT = 1 << 16


def seeds(folder: Path) -> list[Path]:
    """Small files that use most operations."""
    generator = np.random.default_rng(0)
    conv = {"dilation": [1, 1], "groups": 1, **REST}
    weights = {
        "a": sparse(generator, (8, 3, 3, 3)),
        "b": sparse(generator, (8, 8, 1, 1)),
        "c": sparse(generator, (8, 8, 3, 3)),
        "d": sparse(generator, (5, 8)),
        "e": sparse(generator, (8, 1, 3, 3)),
        "s": np.ones(8, np.float32),
    }
    image = [
        op("conv2d", ["x"], "a", weight="a", stride=[2, 2], padding=[1, 1], **conv),
        op("conv2d", ["a"], "b", weight="b", stride=[1, 1], padding=[0, 0], **conv),
        op("conv2d", ["b"], "c", weight="c", stride=[1, 1], padding=[1, 1], **{**conv, "residual": "a"}),
        op("conv2d", ["c"], "d", weight="e", stride=[1, 1], padding=[1, 1], **{**conv, "groups": 8}),
        op("conv2d", ["d"], "e", weight="e", stride=[2, 2], padding=[1, 1], **{**conv, "groups": 8}),
        op("conv_transpose2d", ["e"], "t", weight="b", stride=[2, 2], padding=[0, 0], output_padding=[1, 1], **conv),
        op("max_pool2d", ["t"], "p", kernel=[3, 3], stride=[2, 2], padding=[1, 1], dilation=[1, 1], ceil_mode=True),
        op("resize", ["p"], "r", size=[5, 7], mode="bilinear", align_corners=False),
        op("scale_shift", ["r"], "n", scale="s", shift="s"),
        op("concat", ["n", "r"], "k", axis=1),
        op("slice", ["k"], "l", axis=1, start=0, stop=8, step=1),
        op("adaptive_avg_pool2d", ["l"], "q", size=[1, 1]),
        op("reshape", ["q"], "f", shape=[None, 8]),
        op("linear", ["f"], "y", weight="d", **REST),
    ]
    tokens = [
        op("linear", ["x"], "h", weight="d", **{**REST, "activation": "gelu"}),
        op("reshape", ["h"], "q", shape=[None, 2, 3, 5]),
        op("permute", ["q"], "k", axes=[0, 1, 3, 2]),
        op("matmul", ["q", "k"], "m"),
        op("softmax", ["m"], "s", axis=-1),
        op("attention", ["q", "q", "q"], "a", scale=0.5, mask=None),
        op("matmul", ["s", "a"], "w"),
        op("layer_norm", ["w"], "n", weight=None, bias=None, eps=1e-5, axes=[-1]),
        op("mean", ["n"], "y", axes=[1, 2], keepdim=False),
    ]
    return [
        write_net(folder / "image.spx", {"x": (3, 9, 11)}, image, weights),
        write_net(folder / "tokens.spx", {"x": (6, 8)}, tokens, {"d": weights["d"]}),
    ]


def mutate_bytes(content: bytes, dice: random.Random) -> bytes:
    """Change, insert, remove or repeat some bytes."""
    changed = bytearray(content)
    # Half of the files keep their header: masks, gaps and values are what the kernels' tables are made of.
    inside = dice.random() < 0.5
    first = 8 + int.from_bytes(content[:8], "little") if inside else 0
    for _ in range(dice.randint(1, 5)):
        place = dice.randrange(first, len(changed))
        kind = dice.randrange(2 if inside else 4)
        if kind == 0:
            changed[place] = dice.randrange(256)
        elif kind == 1:
            changed[place] ^= 1 << dice.randrange(8)
        elif kind == 2:
            del changed[place : place + dice.randint(1, 9)]
        else:
            changed[place:place] = bytes(dice.randrange(256) for _ in range(dice.randint(1, 9)))
    return bytes(changed)


def mutate_graph(content: bytes, dice: random.Random) -> bytes:
    """Change values anywhere in the header or the graph, and write a consistent file again."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    document = json.loads(header["__metadata__"]["graph"])
    for _ in range(dice.randint(1, 3)):
        _change(document if dice.random() < 0.8 else header, dice)
    if isinstance(header.get("__metadata__"), dict):
        header["__metadata__"]["graph"] = json.dumps(document)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def _change(node: Any, dice: random.Random) -> None:
    """Walk down at random and change what is found."""
    while True:
        keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = dice.choice(keys)
        child = node[key]
        if isinstance(child, dict | list) and child and dice.random() < 0.85:
            node = child
            continue
        if isinstance(child, int) and not isinstance(child, bool) and dice.random() < 0.6:
            node[key] = child + dice.choice([-2, -1, 1, 2, 5])
        elif dice.random() < 0.1 and isinstance(node, dict):
            del node[key]
        else:
            node[key] = copy.deepcopy(dice.choice(NUMBERS))  # lists and dictionaries may be changed in turn
        return


def try_file(path: Path) -> bool:
    """Load and run a file; whether it was accepted. Everything but the expected errors goes up."""
    try:
        engine = load(path, threads=1, tune=False)
        shapes = [tuple(2 if n is None else n for n in shape) for shape in engine.model.graph.inputs.values()]
        if sum(int(np.prod(shape, dtype=object)) for shape in shapes) > MAX_INPUT:
            return False
        engine(*(np.ones(shape, np.float32) for shape in shapes))
    except (ValueError, OSError):
        return False
    return True


def run(cases: int, seed: int) -> dict[str, float]:
    """Run all cases; returns counts."""
    warnings.simplefilter("ignore")
    dice = random.Random(seed)
    accepted, begin = 0, time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        contents = [path.read_bytes() for path in seeds(Path(folder))]
        path = Path(folder, "case.spx")
        for _ in range(cases):
            mutate = mutate_bytes if dice.random() < 0.5 else mutate_graph
            path.unlink(missing_ok=True)  # the file before may still be mapped
            path.write_bytes(mutate(dice.choice(contents), dice))
            accepted += try_file(path)
    return {"cases": cases, "accepted": accepted, "seconds": round(time.perf_counter() - begin, 1)}


def run_sanitized(options: argparse.Namespace) -> int:
    """The same in a child process with a sanitized build of the kernels."""
    program = compiler()
    if program is None:
        raise SystemExit("no C++ compiler")
    runtime = subprocess.check_output([program, "-print-file-name=libasan.so"], text=True).strip()
    with tempfile.TemporaryDirectory() as folder:
        kernels = build(Path(folder, "kernels.so"), extra=("-fsanitize=address", "-g", "-O1"))
        environment = {
            **os.environ,
            "LD_PRELOAD": runtime,
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "SOFTPRUNE_KERNELS": str(kernels),
        }
        command = [sys.executable, __file__, "--cases", str(options.cases), "--seed", str(options.seed)]
        return subprocess.run(command, env=environment).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sanitize", action="store_true")
    options = parser.parse_args()
    if options.sanitize:
        return run_sanitized(options)
    sys.stdout.write(json.dumps(run(options.cases, options.seed)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
