"""Budgets open where neither torch nor numpy is installed."""

import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"

SCRIPT = f"""
import sys
sys.path.insert(0, {str(SRC)!r})
import softprune.budget
from softprune import Budget, Flops, Sparsity, erk, uniform
from softprune.budget import zoo
from softprune.nn.catalog import NETWORKS
budget = Budget.load("resnet50/str-90.23")
shared = erk(budget.profile, Flops(400_000_000))
copy = Budget.from_json(shared.to_json())
print(len(zoo()), round(100 * budget.overall, 2), copy.macs(), uniform(budget.profile, Sparsity(0.9)).macs())
assert not {{"torch", "numpy"}} & set(sys.modules), "torch or numpy was imported"
"""


def test_budgets_without_site_packages():
    # -I -S: no site-packages at all, so an import of torch or numpy would fail.
    run = subprocess.run([sys.executable, "-I", "-S", "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert run.stderr == ""
    assert run.stdout.split() == ["23", "90.23", "400000000", "409018778"]
