"""Install wheels into fresh environments with NumPy alone and run a network in each: no torch, no compiler.

python tools/try_wheel.py --kernels compiled dist/*.whl
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

NETWORK = Path(__file__).resolve().parents[1] / "tests" / "deploy" / "format" / "version1.spx"
SCRIPT = """
import sys, warnings
import numpy as np
from softprune.deploy.engine import load
from softprune.deploy.format.reference import run

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    engine = load(sys.argv[1], threads=1, tune=False)
noise = np.random.default_rng(0)
shapes = [[3 if n is None else n for n in shape] for shape in engine.model.graph.inputs.values()]
inputs = [noise.standard_normal(shape).astype(np.float32) for shape in shapes]
found = engine(*inputs)
wanted = run(engine.model.graph.document, {n: w.dense() for n, w in engine.model.weights.items()}, inputs)
for y, z in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
    assert y.shape == z.shape and np.abs(y - z).max() <= 1e-4 * np.abs(z).max()
assert "torch" not in sys.modules
print(engine.level, "warned" if any("runtime.build" in str(w.message) for w in said) else "silent")
"""


def try_wheel(wheel: Path) -> list[str]:
    """The level at which the engine ran, and whether it warned."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder, "bin", "python"))
        subprocess.run([python, "-m", "pip", "install", "--quiet", "numpy"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)], check=True)
        command = [python, "-I", "-c", SCRIPT, str(NETWORK)]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout.split()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--kernels", choices=["compiled", "none"], required=True)
    options = parser.parse_args()
    wrong = 0
    for wheel in options.wheels:
        level, voice = try_wheel(wheel)
        expected = voice == "warned" if options.kernels == "none" else voice == "silent" and level != "reference"
        print(f"{wheel.name}: {level}, {voice}{'' if expected else ': not what was wanted'}")
        wrong += not expected
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
