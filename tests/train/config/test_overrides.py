"""Changes from the command line: every path that exists can be set, every other is refused with the nearest."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softprune.train.config import ConfigError, RunConfig
from softprune.train.config.keys import ELEMENT, leaves, parse_yaml, write_yaml
from softprune.train.config.run import apply_overrides

BASE = {
    "model": "digits",
    "data": "digits",
    "method": {"name": "str", "s_init": -100},
    "optimizer": {"name": "sgd", "lr": 0.1, "weight_decay": 5e-4},
    "epochs": 6,
    "batch": 64,
}
PATHS = [path for path, _ in leaves(RunConfig) if ELEMENT not in path]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


def load(*overrides, base=BASE):
    return RunConfig.parse(apply_overrides(base, overrides))


def test_the_examples():
    config = load(
        "optimizer.lr=1e-3", "method.s_init=-200", "data.subset=5000", "ema=null", "skip=[6.weight]", "compile=true"
    )
    assert config.optimizer.lr == 0.001 and config.method.settings["s_init"] == -200.0
    assert config.data.subset == 5000 and config.data.name == "digits"
    assert config.ema is None and config.skip == ("6.weight",) and config.compile is True


def test_short_forms_are_written_out_on_the_way():
    data = apply_overrides({**BASE, "method": "str", "schedule": "cosine"}, [
        "model.args.num_classes=5", "method.min_keep=3", "schedule.warmup_epochs=1"
    ])  # fmt: skip
    assert data["model"] == {"name": "digits", "args": {"num_classes": 5}}
    assert data["method"] == {"name": "str", "min_keep": 3}
    assert data["schedule"] == {"name": "cosine", "warmup_epochs": 1}


def test_sections_that_were_left_out_or_null_are_made():
    assert load("schedule.per=epoch", "checkpoint.keep=5").checkpoint.keep == 5
    assert apply_overrides({"expected": None}, ["expected.note=a b"]) == {"expected": {"note": "a b"}}


def test_later_ones_win_and_a_whole_section_can_be_replaced():
    assert load("epochs=3", "epochs=4").epochs == 4
    config = load("optimizer={name: adamw, lr: 1e-3, weight_decay: 0.05}", "method=null")
    assert config.optimizer.name == "adamw" and config.method is None


def test_elements_of_a_list():
    base = {**BASE, "rules": [{"match": "0.*"}, {"match": "3.*", "s_init": -5}]}
    assert [rule.s_init for rule in load("rules.1.s_init=-7", base=base).rules] == [None, -7.0]
    with pytest.raises(ConfigError, match=r"rules\.2\.skip: the list has the elements 0 to 1; write the whole list"):
        load("rules.2.skip=true", base=base)
    with pytest.raises(ConfigError, match=r"rules is not a list yet; write rules=\[...\] instead"):
        load("rules.0.skip=true")


def test_the_given_data_are_not_changed():
    before = copy.deepcopy(BASE)
    apply_overrides(BASE, ["optimizer.lr=5", "model.args.x=1", "method.s_init=-1"])
    assert before == BASE


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lrr=1", r"optimizer\.lrr: unknown key; did you mean optimizer\.lr\? \(optimizer has name, lr, "),
        ("lr=0.1", r"lr: unknown key; did you mean optimizer\.lr\?"),
        ("every_epochs=1", r"did you mean checkpoint\.every_epochs\?"),
        ("sheduler.per=epoch", r"sheduler: unknown key; did you mean schedule\?"),
        ("method.s_initt=3", r"method\.s_initt: unknown key; did you mean method\.s_init\?"),
        ("xyzzy=3", r"xyzzy: unknown key \(the keys are version, name, "),
        ("optimizer.lr.x=1", r"optimizer\.lr is a value and has no keys of its own"),
        ("epochs", r"epochs: an override is key=value, such as optimizer\.lr=0\.1"),
        ("=3", "an override is key=value"),
        ("optimizer..lr=3", "an override is key=value"),
        ("ema=", "ema= has no value; write ema=null"),
        ("skip=[fc", r"skip: skip=\[fc, line 1 is not valid YAML"),
    ],
)
def test_what_cannot_be_set_says_so(override, message):
    with pytest.raises(ConfigError, match=message):
        apply_overrides(BASE, [override])


def test_all_problems_at_once():
    with pytest.raises(ConfigError) as caught:
        RunConfig.load("digits/str", ["lr=1", "epochs=2", "batchh=3"])
    assert [problem.path for problem in caught.value.problems] == ["lr", "batchh"]
    assert str(caught.value).startswith("recipe digits/str with these overrides has 2 problems:\n  lr: ")


@given(st.sampled_from(PATHS), SCALARS)
@settings(max_examples=200, deadline=None)
def test_every_path_can_be_set_to_any_plain_value(path, value):
    written = write_yaml([value])
    if written.strip() in ("", "null"):
        written = "null"
    data = apply_overrides(BASE, [f"{path}={written}"])
    for part in path.split("."):
        data = data[part]
    assert data == [value]


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8))
@settings(max_examples=100, deadline=None)
def test_yaml_round_trip(value):
    again = parse_yaml(write_yaml(value), "a test")
    assert again == value and type(again) is type(value)


@given(
    st.floats(min_value=1e-6, max_value=1e3),
    st.integers(min_value=1, max_value=10**6),
    st.floats(min_value=-1e6, max_value=-1e-3),
    st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_overrides_survive_dump_and_load(lr, batch, s_init, drop):
    config = load(
        f"optimizer.lr={lr!r}", f"batch={batch}", f"method.s_init={s_init!r}", f"drop_last={str(drop).lower()}"
    )
    assert (config.optimizer.lr, config.batch, config.method.settings["s_init"]) == (lr, batch, s_init)
    assert RunConfig.parse(parse_yaml(config.dump(), "a dump")) == config
