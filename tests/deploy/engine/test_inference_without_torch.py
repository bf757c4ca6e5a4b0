"""The engine where torch is not installed: a process in which importing it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from spx_compare import block, images

from softprune.deploy.engine.inference import load

# A file of version 1 that was written by export.
GOLDEN = Path(__file__).parents[1] / "format" / "version1.spx"
# Everything that only training or exporting needs; softprune's own folders among it.
HOOK = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        parts = name.split(".")
        if parts[0] in {"torch", "safetensors", "pydantic", "typer", "rich", "yaml"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if parts[0] == "softprune" and len(parts) > 1 and parts[1] not in {"deploy", "_native"}:
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, Refuse())
"""
WAYS = {
    "the engine": "from softprune.deploy.engine import load",
    "the package": "import softprune; load = softprune.load",
}


def without_torch(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process that cannot import torch."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", HOOK + script], capture_output=True, text=True, env=environment)


def test_the_hook_works() -> None:
    result = without_torch("import torch")
    assert result.returncode == 1 and "No module named 'torch'" in result.stderr


@pytest.mark.parametrize("way", WAYS)
def test_a_network_runs(tmp_path: Path, way: str) -> None:
    path = block(tmp_path)
    np.save(tmp_path / "x.npy", images(3))
    script = f"""
import numpy as np
{WAYS[way]}
engine = load({str(path)!r}, threads=1, tune=False)
np.save({str(tmp_path / "y.npy")!r}, engine(np.load({str(tmp_path / "x.npy")!r})))
print(engine.level, "torch" in sys.modules)
"""
    result = without_torch(script)
    assert result.returncode == 0, result.stderr
    engine = load(path, threads=1, tune=False)
    assert result.stdout.split() == [engine.level, "False"]
    assert np.array_equal(np.load(tmp_path / "y.npy"), engine(images(3)))


def test_an_exported_file_runs() -> None:
    script = f"""
import numpy as np
from softprune.deploy.engine import load
engine = load({str(GOLDEN)!r}, threads=1, tune=False)
shapes = [[2 if n is None else n for n in shape] for shape in engine.model.graph.inputs.values()]
found = engine(*(np.ones(shape, np.float32) for shape in shapes))
print(all(np.isfinite(y).all() and len(y) == 2 for y in (found if isinstance(found, tuple) else (found,))))
"""
    result = without_torch(script)
    assert result.stdout.strip() == "True", result.stderr


def test_the_package_alone_imports_nothing() -> None:
    result = without_torch("import softprune; print('numpy' in sys.modules, softprune.__version__)")
    assert result.stdout.split()[0] == "False", result.stderr
