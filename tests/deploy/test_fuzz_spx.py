"""A fixed set of the cases of fuzz_spx.py, in this process and without sanitizers."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from pathlib import Path

import pytest
from fuzz_mutations import MUTATIONS, Parts
from fuzz_seeds import write_seeds
from fuzz_spx import make_case

CASES = 240


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_seeds(tmp_path_factory.mktemp("seeds"), exported=False)


def test_files_are_refused_or_run(seeds: list[Path], tmp_path: Path) -> None:
    from fuzz_case import try_file

    contents = [path.read_bytes() for path in seeds]
    stages: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(CASES):
            _, content, dice = make_case(contents, 1, number)
            path = tmp_path / f"{number}.spx"
            path.write_bytes(content)
            stages[try_file(path, dice)] += 1
    assert sum(stages.values()) == CASES
    assert stages["refused"] > CASES // 5 and stages["run"] > CASES // 4, stages


def test_a_case_is_its_number(seeds: list[Path]) -> None:
    contents = [path.read_bytes() for path in seeds]
    assert make_case(contents, 3, 17)[:2] == make_case(contents, 3, 17)[:2]
    assert len({make_case(contents, 3, number)[1] for number in range(20)}) == 20


@pytest.mark.parametrize("kind", MUTATIONS)
def test_every_mutation_changes_something(seeds: list[Path], kind: str) -> None:
    dice = random.Random(5)
    contents = [Parts.of(path.read_bytes()).joined() for path in seeds]
    changed = [MUTATIONS[kind](content, dice) != content for content in contents * 4]
    assert sum(changed) > len(changed) // 2
