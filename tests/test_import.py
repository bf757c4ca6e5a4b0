"""`import softprune` is light, and works where nothing else is installed."""

import subprocess
import sys
from pathlib import Path

import softprune

SRC = Path(softprune.__file__).parents[1]


def run(code: str, *flags: str) -> str:
    done = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_imports_nothing_heavy():
    heavy = "[m for m in ('torch', 'numpy', 'matplotlib', 'typer', 'rich', 'yaml') if m in sys.modules]"
    assert run(f"import sys, softprune; print({heavy})") == "[]"


def test_it_imports_and_reads_budgets_in_an_environment_without_torch():
    # -I -S: no site-packages at all, so torch, numpy and typer cannot be found.
    code = (
        f"import sys; sys.path.insert(0, {str(SRC)!r}); import softprune\n"
        "try:\n    import torch\nexcept ImportError:\n    print('no torch')\n"
        "print(round(softprune.Budget.load('resnet50/str-90.23').overall, 4))"
    )
    assert run(code, "-I", "-S").splitlines() == ["no torch", "0.9023"]


def test_every_public_name_exists_and_is_documented():
    names = [n for n in softprune.__all__ if n != "__version__"]
    assert len(names) <= 41
    undocumented = [n for n in names if not (getattr(softprune, n).__doc__ or "").strip()]
    assert undocumented == []
    assert set(names) <= set(dir(softprune))
