"""What the tests leave behind: nothing outside of their temporary folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

KEPT = {
    "tuning": "from softprune.deploy.engine.tune import folder; print(folder())",
    "compiler": "from torch._inductor.runtime.cache_dir_utils import cache_dir; print(cache_dir())",
    "temporary": "import tempfile; print(tempfile.gettempdir())",
    "examples": "from hypothesis.configuration import storage_directory as d; print(d(intent_to_write=False).path)",
}


@pytest.mark.parametrize("what", KEPT)
def test_what_is_kept_for_a_user_is_kept_in_a_folder_of_the_tests(what):
    done = subprocess.run([sys.executable, "-c", KEPT[what]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    home = Path(os.environ["SOFTPRUNE_TESTS_HOME"])
    assert all(home in Path(line).parents for line in done.stdout.splitlines())
