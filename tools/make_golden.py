"""Write the files of before that the tests in tests/golden read, where they are missing.

Usage: python tools/make_golden.py

A file that is there is never written again: it is of use only as long as an earlier release has written it. What a
later release writes goes beside it, under a new name in `tests/golden/files_of_before.py`. The frozen texts are another
matter: SOFTPRUNE_GOLDEN=write pytest tests/golden brings them up to date.
"""

import sys
import warnings
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden"


def main() -> int:
    sys.path.insert(0, str(GOLDEN))
    import torch
    from files_of_before import BEFORE, write_missing

    torch.manual_seed(20200601)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the trainings are far too short to be any good
    made = write_missing()
    size = sum(path.stat().st_size for path in BEFORE.rglob("*") if path.is_file())
    print(f"wrote {', '.join(made) or 'nothing'}; {BEFORE} holds {size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
