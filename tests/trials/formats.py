"""Spoil files of every format that the package reads: each must be read, or refused in one clear line."""

from __future__ import annotations

import math
import os
import random
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import trial_parts  # noqa: F401 - first: it says where the helpers of the other tests are
from conduct import Block, Book, Try, finish, options, run_block, say, told
from format_binary import SPX_MUTATIONS, binary_formats
from format_text import Format, text_formats
from mutations import BY_KIND, Mutation, spliced

OUTCOMES = ("read", "noted", "refused", "unexpected", "memory")
BLOCK = 2000
# Seconds of the processor after which a case hangs, and bytes that reading a file of some thousand bytes may take.
PATIENCE = 4.0
MEMORY = 3 << 30
SPLICED = 0.05

EPILOG = """
A case is the name of a format, a seed and a number: a valid file, written by the package itself, is spoiled (bits
flipped, parts cut, doubled, spliced; in JSON, YAML and CSV also types swapped, numbers huge, negative or no numbers,
keys lost, nesting deeper than any stack) and given to the reader. ValueError and OSError refuse it as documented; any
other exception, a crash, more than 4 seconds of the processor or 3 GB are findings. Blocks of cases run in forked
children.

  python tests/trials/formats.py --cases 1000000 --out benchmarks/results/trials/formats.json --keep /tmp/kept
  python tests/trials/formats.py --only "budget CSV" --cases 5000
  python tests/trials/formats.py --only "budget CSV" --first 4711 --cases 1     # one case again

The same command goes on where a stopped one was. Files that found something are kept as FORMAT-NUMBER in --keep.
Networks (.spx) are tried under sanitizers by fuzz_spx.py --sanitize.
"""


def make_case(form: Format, seed: int, number: int) -> tuple[int, bytes, random.Random]:
    """The number of the seed file, the spoiled file, and the dice of a case."""
    dice = random.Random(f"{seed}-{form.name}-{number}")
    which = dice.randrange(len(form.seeds))
    content = form.seeds[which]
    if dice.random() < SPLICED:
        return which, spliced(content, dice.choice(form.seeds), dice), dice
    mutations: tuple[Mutation, ...] = SPX_MUTATIONS if form.kind == "spx" else tuple(BY_KIND[form.kind])
    return which, dice.choice(mutations)(content, dice), dice


def attempt(form: Format, seed: int, folder: Path, keep: Path | None) -> Try:
    """What runs a case of a format in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)

    def run(number: int) -> tuple[str, dict[str, Any] | None]:
        which, content, dice = make_case(form, seed, number)
        try:
            return form.read(content, which, folder, dice), None
        except form.allowed:
            return "refused", None
        except Exception as error:
            if keep is not None:
                (keep / f"{form.name.replace(' ', '_').replace(',', '')}-{number}").write_bytes(content)
            return "memory" if isinstance(error, MemoryError) else "unexpected", told(error)

    return run


def shares(formats: list[Format], cases: int) -> dict[str, int]:
    """How many cases each format gets, at least one."""
    whole = sum(form.share for form in formats)
    return {form.name: max(1, math.ceil(cases * form.share / whole)) for form in formats}


def all_formats(folder: Path, *, slow: bool = True) -> list[Format]:
    """Every format, with its seeds made below ``folder``; without what takes seconds to make unless ``slow``."""
    return [*text_formats(folder), *binary_formats(folder, slow=slow)]


def blocks(
    form: Format, first: int, stop: int, *, seed: int, folder: Path, keep: Path | None, size: int = BLOCK
) -> Iterator[Block]:
    """Run the cases of a format, block by block."""
    scratch = folder / form.name.replace(" ", "_")
    run = attempt(form, seed, scratch / "files", keep)
    while first < stop:
        end = min(stop, first + max(1, min(size, int(size * form.share / 20))))
        block = run_block(run, first, end, outcomes=OUTCOMES, scratch=scratch, seconds=PATIENCE, memory=MEMORY)
        for finding in block.findings:
            if finding["outcome"] in ("crash", "hang") and keep is not None:
                name = f"{form.name.replace(' ', '_').replace(',', '')}-{finding['case']}"
                (keep / name).write_bytes(make_case(form, seed, finding["case"])[1])
        yield block
        first = block.reached


def main() -> int:
    parser = options(__doc__.splitlines()[0], cases=1_000_000, epilog=EPILOG)
    parser.add_argument("--only", action="append", help="a format by its name; may be given several times")
    parser.add_argument("--first", type=int, default=0, help="number of the first case of each format")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as place:
        formats = all_formats(Path(place))
        if given.only:
            if strange := sorted(set(given.only) - {form.name for form in formats}):
                parser.error(f"no format {strange[0]!r}; there are: {', '.join(form.name for form in formats)}")
            formats = [form for form in formats if form.name in given.only]
        wanted = shares(formats, given.cases)
        book = Book(given.out, seed=given.seed)
        try:
            for form in formats:
                begin = max(given.first, book.done(form.name))
                stop = given.first + wanted[form.name]
                for block in blocks(form, begin, stop, seed=given.seed, folder=Path(place), keep=given.keep):
                    book.add(form.name, block)
                    say(
                        f"{form.name}: {block.reached:,} of {stop:,}; {book.cases:,} in all, {book.findings:,} findings"
                    )
                shutil.rmtree(Path(place) / form.name.replace(" ", "_"), ignore_errors=True)
        except KeyboardInterrupt:
            say("stopped; the same command goes on from here")
    return finish(book)


if __name__ == "__main__":
    raise SystemExit(main())
