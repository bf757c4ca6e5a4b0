"""The public names, their signatures, and the import paths that the documentation uses stay as they are."""

from frozen_names import documented, lines_of, package, paths_in
from frozen_text import DATA, WRITE, assert_frozen, sections

NAMES, PATHS = "public_names.txt", "documented import paths"


def test_public_names_and_documented_paths_have_the_frozen_signatures():
    # What was documented once goes on working, also when no page speaks of it any more.
    text = (DATA / NAMES).read_text(encoding="utf-8") if (DATA / NAMES).is_file() else ""
    paths = documented() if WRITE else paths_in(text.partition(PATHS)[2].splitlines())
    assert_frozen(NAMES, sections({"softprune": lines_of(package()), PATHS: lines_of(paths)}))


def test_every_path_that_a_page_speaks_of_is_frozen():
    frozen = paths_in((DATA / NAMES).read_text(encoding="utf-8").splitlines())
    assert len(frozen) > 60
    assert sorted(set(documented()) - set(frozen)) == []
