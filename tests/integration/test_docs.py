"""Every Python block in the README and the docs runs, each in a process of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import warm

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S))
]


def test_there_are_blocks():
    assert len(BLOCKS) >= 8


@pytest.mark.parametrize("block", BLOCKS)
def test_the_block_runs(block, tmp_path):
    script = tmp_path / "block.py"
    script.write_text(block, encoding="utf-8")
    done = warm.run(script, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


def test_the_first_block_runs_in_an_interpreter_that_has_imported_nothing(tmp_path):
    (block,) = BLOCKS[0].values
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            assert link.startswith("http") or (page.parent / link).exists(), f"{page.name}: {link}"
