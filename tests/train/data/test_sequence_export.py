"""`softprune export --format c`: a run on HAR-2 becomes a program that takes what the sensors give."""

import subprocess
import zipfile
from itertools import islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from real_data import shared
from sequence_files import HAR_COUNTS, write_har
from typer.testing import CliRunner

from softprune.cli import app
from softprune.core.state_file import write_tensors
from softprune.deploy.export.c import CFiles, CompiledC, compile_c
from softprune.deploy.export.c.compiled import c_compiler
from softprune.deploy.export.c.float_network import plain_classifier
from softprune.deploy.export.c.integer_network import quantised
from softprune.nn.fastgrnn import fastgrnn_har2
from softprune.train.config import RunConfig
from softprune.train.data import har
from softprune.train.load_run import plain_network
from softprune.train.run import train

needs_compiler = pytest.mark.skipif(c_compiler() is None, reason="needs a C compiler: cc, gcc, clang or $CC")


def invoke(*words):
    return CliRunner().invoke(app, ["export", *map(str, words)], env={"COLUMNS": "200"})


def export(*words):
    result = invoke(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def refused(*words):
    result = invoke(*words)
    assert isinstance(result.exception, ValueError), (result.output, result.exception)
    return str(result.exception)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A short run, and the raw windows that it was trained on."""
    root = tmp_path_factory.mktemp("har")
    arrays = write_har(root / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(har.read_har2.__kwdefaults__, "counts", HAR_COUNTS)
        config = {
            "model": {"name": "fastgrnn_har2", "args": {"rank_w": 2, "rank_u": 3, "hidden_size": 10}},
            "data": {"name": "har2", "root": str(root / "data")},
            "method": None,
            "epochs": 3,
            "batch": 20,
            "optimizer": {"name": "adam", "lr": 0.01, "weight_decay": 0.0},
            "schedule": {"warmup_epochs": 0},
        }
        train(RunConfig.parse(config), root / "run")
        yield root / "run", arrays


def program(folder, *, int8, name="fastgrnn"):
    """The program of a folder, compiled; its own check has passed."""
    header, source, main = (folder / f"{name}{end}" for end in (".h", ".c", "_main.c"))
    subprocess.run([compile_c([source, main], folder / "check")], check=True, capture_output=True)
    return CompiledC(CFiles(header, source, main, 0, 4096, (128, 9), 2, int8))


@needs_compiler
@pytest.mark.parametrize("int8", [False, True])
def test_the_program_of_a_run_takes_raw_values(trained, int8, tmp_path):
    run, arrays = trained
    said = export(run, "--format", "c", "--out", tmp_path / "c", *(["--int8"] if int8 else []))
    assert f"wrote {tmp_path / 'c'}: " in said and "bytes of constants" in said and "bytes of state" in said
    with torch.no_grad():
        network = plain_network(run)
        normal = torch.cat([x for x, _ in network.source.test_epoch(batch=5)])
        wanted = network.module(normal).numpy()
    found = program(tmp_path / "c", int8=int8).scores(arrays["test_x"])
    if int8:
        # A unit of a score is unknown here: what is left is which class is ahead, and by how much.
        assert np.corrcoef(found[:, 0] - found[:, 1], wanted[:, 0] - wanted[:, 1])[0, 1] > 0.99
    else:
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


@needs_compiler
def test_one_normalisation_for_all_steps_is_smaller_and_near(trained, tmp_path):
    run, arrays = trained
    export(run, "-f", "c", "-o", tmp_path / "steps")
    export(run, "-f", "c", "-o", tmp_path / "features", "--normalisation", "features", "--name", "har")
    export(run, "-f", "c", "-o", tmp_path / "none", "--normalisation", "none")
    texts = [(tmp_path / "steps/fastgrnn.c"), (tmp_path / "features/har.c"), (tmp_path / "none/fastgrnn.c")]
    steps, features, none = ("mean[1152]" in t.read_text() for t in texts)
    assert (steps, features, none) == (True, False, False)
    assert "mean[9]" in texts[1].read_text() and "mean" not in texts[2].read_text()
    pooled = program(tmp_path / "features", int8=False, name="har").scores(arrays["test_x"])
    exact = program(tmp_path / "steps", int8=False).scores(arrays["test_x"])
    # The windows of the fixture are noise about a mean that is the same at every step.
    assert 0 < np.abs(pooled - exact).max() < 0.5 * np.ptp(exact)


def test_what_a_program_is_not_written_from(trained, tmp_path):
    run, _ = trained
    assert "are for --format c; the format is spx" in refused(run, "--int8", "-o", tmp_path / "x.spx")
    assert "--normalisation is steps, features, none; got 'x'" in refused(run, "-f", "c", "--normalisation", "x")
    assert "'a-b' is not a C identifier" in refused(run, "-f", "c", "--name", "a-b", "-o", tmp_path / "c")
    assert "is a file: name a folder" in refused(run, "-f", "c", "-o", run / "config.yaml")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "fastgrnn.c").write_text("mine")
    assert "give --force" in refused(run, "-f", "c", "-o", tmp_path / "taken")
    export(run, "-f", "c", "-o", tmp_path / "taken", "--force")
    assert (tmp_path / "taken" / "fastgrnn.c").read_text().startswith("/* FastGRNN in float32")
    digits = tmp_path / "digits.safetensors"
    from softprune.nn.digits import digits_cnn

    write_tensors(digits, digits_cnn().state_dict())
    assert "the model is a Sequential: only" in refused(digits, "--model", "digits", "-f", "c", "-o", tmp_path / "no")
    assert not (tmp_path / "no").exists() and not (tmp_path / "c").exists()


@needs_compiler
def test_weights_alone_are_checked_with_random_windows(tmp_path):
    write_tensors(tmp_path / "w.safetensors", fastgrnn_har2().state_dict())
    export(tmp_path / "w.safetensors", "--model", "fastgrnn_har2", "-f", "c", "--int8")
    first = (tmp_path / "c" / "fastgrnn_main.c").read_bytes()
    program(tmp_path / "c", int8=True)
    export(tmp_path / "w.safetensors", "--model", "fastgrnn_har2", "-f", "c", "--int8", "--force")
    assert (tmp_path / "c" / "fastgrnn_main.c").read_bytes() == first


def test_int8_classifies_real_windows_as_float32_does():
    """A network that has learnt something of real windows; others of them are classified alike."""
    archive = zipfile.ZipFile(shared("data", "uci_har", "UCI HAR Dataset.zip"))
    if f"{har.FOLDER}.zip" in archive.namelist():
        archive = zipfile.ZipFile(archive.open(f"{har.FOLDER}.zip"))

    def rows(name):
        with archive.open(f"{har.FOLDER}/test/{name}_test.txt") as file:
            return np.array([line.split() for line in islice(file, 240)], np.float32)

    signals = torch.from_numpy(np.stack([rows(f"Inertial Signals/{s}") for s in har.SIGNALS], 2))
    labels = torch.tensor([har.CLASS_OF[int(a)] for a in rows("y")[:, 0]])
    windows = (signals - signals.mean((0, 1))) / signals.std((0, 1))
    learning, others = slice(0, None, 2), slice(1, None, 2)
    model = fastgrnn_har2(rank_w=5, rank_u=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model(windows[learning]), labels[learning]).backward()
        optimizer.step()
    integers = quantised(plain_classifier(model), windows[learning])
    with torch.no_grad():
        wanted = model(windows[others]).argmax(1).numpy()
    found = integers.scores(windows[others].numpy()).argmax(1)
    assert (wanted == labels[others].numpy()).mean() > 0.7  # it has learnt something
    assert (found == wanted).mean() >= 0.97
