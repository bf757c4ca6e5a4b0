"""A run on sequences: FastGRNN with learnt ranks on a small HAR-2, from the configuration to the checkpoint."""

import pytest
from sequence_files import HAR_COUNTS, write_har

from softprune.train.config import RunConfig
from softprune.train.data import har
from softprune.train.run import train
from softprune.train.run_folder import RunFolder


def config(root, **data):
    return RunConfig.parse(
        {
            "model": {"name": "fastgrnn_har2", "args": {"learned": True, "hidden_size": 8}},
            "data": {"name": "har2", "root": str(root), **data},
            "method": {"name": "str", "s_init": -10.0, "g": "exp"},
            "rules": [{"match": "fc", "skip": True}, {"match": "*.m", "skip": False}],
            "epochs": 2,
            "batch": 20,
            "optimizer": {"name": "sgd", "lr": 0.01, "weight_decay": 0.001},
            "schedule": {"warmup_epochs": 0},
        }
    )


@pytest.mark.filterwarnings("ignore::softprune.ForecastWarning")
@pytest.mark.parametrize("held", ["test", "validation"])
def test_it_trains_and_measures_the_importances(tmp_path, monkeypatch, held):
    write_har(tmp_path / "data")
    # The defaults of a function are read when it is made.
    monkeypatch.setitem(har.read_har2.__kwdefaults__, "counts", HAR_COUNTS)
    outcome = train(config(tmp_path / "data", held=held), tmp_path / "run")
    assert outcome.finished
    assert set(outcome.budget.densities) == {"rnn.cell.w.m", "rnn.cell.u.m"}
    rows = [row for row in RunFolder(tmp_path / "run").metrics() if row["kind"] == "epoch"]
    assert len(rows) == 2
    assert (rows[-1]["accuracy"] * 12).is_integer()  # both held parts have twelve windows


def test_a_validation_where_there_is_none_is_refused():
    with pytest.raises(ValueError, match=r"'validation' has no effect with digits, only with har2 and google12"):
        RunConfig.parse({**config("data").model_dump(), "data": {"name": "digits", "held": "validation"}})
