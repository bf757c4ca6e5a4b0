"""Files that rooms share: names that writers and readers agree on, and files that are whole or not there."""

from dataclasses import fields

import pytest

from softprune.core.collapse import Diagnosis
from softprune.deploy.bench.contest import bench
from softprune.deploy.bench.race import Ratio, TimedLayer
from softprune.records import LAYER_COLUMNS, BenchKey, parse_json, read_text, require_format, write_text
from softprune.reporting.run import LayerRow


def test_write_replaces_and_leaves_nothing_else(tmp_path):
    target = tmp_path / "a.json"
    target.write_text("old")
    assert write_text(target, "new\n") == target
    assert target.read_bytes() == b"new\n"
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_write_keeps_the_old_file(tmp_path):
    target = tmp_path / "a.json"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text(target, "\ud800")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_binary_files_are_refused(tmp_path):
    path = tmp_path / "model.json"
    path.write_bytes(b"\x80\x02\xff")
    with pytest.raises(ValueError, match=r"model\.json is not a text file"):
        read_text(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1', "not valid JSON, perhaps it was cut short"),
        ("", "not valid JSON"),
        ("[1]", "holds a JSON list, not an object"),
        ('{"a": NaN}', "contains NaN; only finite numbers"),
        ('{"a": -Infinity}', "contains -Infinity"),
        ('{"a": -' + "9" * 5000 + "}", "contains an integer of 5001 digits, which is too large"),
        ('{"a": {"b": 1, "b": 2}}', "names 'b' twice"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_bad_json_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text, "x.json")


def test_format_and_version():
    require_format({"format": "f", "version": 1}, "f", version=1, origin="x")
    with pytest.raises(ValueError, match="x has format None; a 'f' file is needed"):
        require_format({"version": 1}, "f", version=1, origin="x")
    with pytest.raises(ValueError, match="version 2; this release reads version 1"):
        require_format({"format": "f", "version": 2}, "f", version=1, origin="x")


def test_columns_are_those_that_are_written_and_read():
    assert ("epoch", "step", *(field.name for field in fields(Diagnosis)), "macs") == LAYER_COLUMNS
    assert {field.name for field in fields(LayerRow)} | {"name"} <= set(LAYER_COLUMNS)


def test_a_benchmark_has_all_keys():
    result = bench("zoo:digits/uniform-80", against=(), bursts=1, seconds=0.01, tune=False)
    of_parts = {*result[BenchKey.ENGINES]["softprune"], *(field.name for field in fields(Ratio))}
    if result[BenchKey.LAYERS]:  # where the kernels are compiled
        of_parts |= set(result[BenchKey.LAYERS][0])
    else:
        of_parts |= {field.name for field in fields(TimedLayer)}
    named = [value for name, value in vars(BenchKey).items() if not name.startswith("_")]
    keys = {key for value in named for key in (value if isinstance(value, tuple) else (value,))}
    assert keys <= {*result, *of_parts}
