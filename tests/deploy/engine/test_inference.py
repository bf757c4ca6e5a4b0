"""The engine as a whole: threads, batches, instruction sets, tuning, tensors, the fallback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spx_compare import REST, block, close, difference, images, reference, sparse
from spx_files import op, write_net

from softprune.deploy.engine import tune
from softprune.deploy.engine.execution import Executable, KernelChoice
from softprune.deploy.engine.grid import view_as
from softprune.deploy.engine.inference import KernelWarning, _array, load
from softprune.deploy.engine.library import library
from softprune.deploy.engine.tune import BANDS
from softprune.deploy.format import storage


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTPRUNE_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("batch", [1, 3, 16])
def test_batches_and_threads(tmp_path: Path, threads: int, batch: int) -> None:
    assert close(load(block(tmp_path), threads=threads, tune=False), batch)


@pytest.mark.parametrize("bands", BANDS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("batch", [1, 3])
def test_wavefront(tmp_path: Path, bands: int, threads: int, batch: int) -> None:
    from softprune.deploy.engine.execution import Executable
    from softprune.deploy.engine.planner import build

    engine = load(block(tmp_path), threads=threads, tune=False)
    kernels = library()
    assert kernels is not None and engine.team is not None
    builder = build(engine.model, kernels, batch=batch, threads=threads)  # owns the buffers
    program = builder.program
    assert program.chains
    program.bands = {chain.start: bands for chain in program.chains}
    x, y = images(batch), np.zeros((batch, 10), np.float32)
    Executable(kernels, engine.team, program).run([x.ctypes.data, y.ctypes.data])
    assert difference(y, reference(engine, [x])[0]) < 2e-5


@pytest.mark.parametrize("size", [11, 13, 15, 17, 29, 33])
@pytest.mark.parametrize("batch", [1, 2])
def test_wavefront_whose_last_tile_ends_behind_the_last_image(tmp_path: Path, size: int, batch: int) -> None:
    from softprune.deploy.engine.execution import Executable
    from softprune.deploy.engine.planner import build

    engine = load(block(tmp_path, size), threads=1, tune=False)
    kernels = library()
    assert kernels is not None and engine.team is not None
    builder = build(engine.model, kernels, batch=batch, threads=1)  # owns the buffers
    program = builder.program
    x = images(batch, size)
    wanted = reference(engine, [x])[0]
    for vectors in (1, 3, 4, 8):
        for step in program.steps:
            if step.kernel is not None:
                step.choose(min(step.kernel.choices(), key=lambda choice: abs(choice.vectors - vectors)))
        program.bands = {chain.start: 4 for chain in program.chains}
        y = np.zeros((batch, 10), np.float32)
        Executable(kernels, engine.team, program).run([x.ctypes.data, y.ctypes.data])
        assert difference(y, wanted) < 2e-5, vectors


def test_every_choice_gives_the_same(tmp_path: Path) -> None:
    from softprune.deploy.engine.execution import Executable
    from softprune.deploy.engine.planner import build

    engine = load(block(tmp_path), threads=2, tune=False)
    kernels = library()
    assert kernels is not None and engine.team is not None
    builder = build(engine.model, kernels, batch=2, threads=2)  # owns the buffers
    program = builder.program
    plan = Executable(kernels, engine.team, program, grouped=False)
    x, y = images(2), np.zeros((2, 10), np.float32)
    wanted = reference(engine, [x])[0]
    tried = 0
    for place, step in enumerate(program.steps):
        if step.kernel is None:
            continue
        extra = [
            KernelChoice("sparse", 5, blocks=3),
            KernelChoice("sparse", 2, by_channel=True),
            KernelChoice("dense", 2),
        ]
        for choice in [*step.kernel.choices(), *extra]:
            plan.choose(place, choice)
            y[:] = 0
            plan.run([x.ctypes.data, y.ctypes.data])
            assert difference(y, wanted) < 2e-5, choice
            tried += 1
    assert tried > 40


def test_two_python_threads_on_one_engine(tmp_path: Path) -> None:
    engine = load(block(tmp_path), threads=2, tune=False)
    inputs = [images(n) for n in (1, 2, 3, 4)]
    wanted = [reference(engine, [x])[0] for x in inputs]
    wrong: list[int] = []

    def work(start: int) -> None:
        for turn in range(20):
            i = (start + turn) % len(inputs)
            if difference(engine(inputs[i]), wanted[i]) > 2e-5:
                wrong.append(i)

    workers = [threading.Thread(target=work, args=(start,)) for start in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.parametrize("kernels", ["own", "none"])
def test_first_calls_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str) -> None:
    """Plans are made and tuned, or weights unpacked, while another thread calls too."""
    if kernels == "none":
        monkeypatch.setenv("SOFTPRUNE_KERNELS", "none")
        library.cache_clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KernelWarning)
            engine = load(block(tmp_path, 9), threads=2)
        start, right = threading.Barrier(4), []

        def work(batch: int) -> None:
            start.wait()
            right.extend(close(engine, batch, 9) for _ in range(3))

        workers = [threading.Thread(target=work, args=(batch,)) for batch in (1, 1, 2, 3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert right == [True] * 12
    finally:
        monkeypatch.undo()
        library.cache_clear()


def test_tuning_is_kept(tmp_path: Path) -> None:
    path = block(tmp_path)
    first = load(path, threads=1)
    assert close(first, 1)
    kept = list((tmp_path / "cache" / "tuning").glob("*.json"))
    assert len(kept) == 1
    second = load(path, threads=1)
    assert close(second, 1)
    choices = [[step.choice for step in engine.plan(1).program.steps] for engine in (first, second)]
    assert choices[0] == choices[1]


def test_damaged_cache_is_ignored(tmp_path: Path) -> None:
    path = block(tmp_path)
    assert close(load(path, threads=1), 1)
    (kept,) = (tmp_path / "cache" / "tuning").glob("*.json")
    for content in ("{", "[]", '{"choices": {"0": {"kind": "sparse", "vectors": 99}}, "bands": {}}'):
        kept.write_text(content)
        assert close(load(path, threads=1), 1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs")
def test_a_cache_that_is_no_file_or_a_huge_one_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = block(tmp_path)
    assert close(load(path, threads=1), 1)
    (kept,) = (tmp_path / "cache" / "tuning").glob("*.json")
    content = kept.read_bytes()
    assert tune.read_results(kept.stem) is not None
    kept.unlink()
    os.mkfifo(kept)
    assert tune.read_results(kept.stem) is None
    kept.unlink()
    kept.write_bytes(content)
    monkeypatch.setattr(tune, "MAX_BYTES", len(content) - 1)
    assert tune.read_results(kept.stem) is None


def test_tensors_without_copies(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    engine = load(block(tmp_path), threads=1, tune=False)
    x = images(2)
    assert np.array_equal(engine(torch.from_numpy(x)), engine(x))
    assert np.array_equal(engine(torch.from_numpy(x).requires_grad_()), engine(x))
    strange = torch.zeros(1, 3, 23, 23)
    for tensor in (strange.double(), strange.bfloat16(), strange.to("meta"), strange.to_sparse(), [[1.0], [2.0, 3.0]]):
        with pytest.raises(TypeError, match="input 'x' must be float32"):
            engine(tensor)


@pytest.mark.parametrize("level", ["portable", "avx2", "avx512"])
def test_instruction_sets(tmp_path: Path, level: str) -> None:
    """Each in a process of its own, because the choice is made once."""
    here = Path(__file__).parent
    script = (
        "from pathlib import Path; import spx_compare as t; from softprune.deploy.engine.inference import load\n"
        f"engine = load(t.block(Path({str(tmp_path)!r})), threads=2, tune=False)\n"
        "print(engine.level, all(t.close(engine, batch) for batch in (1, 3)))"
    )
    paths = os.pathsep.join([str(here), *sys.path])
    environment = {**os.environ, "SOFTPRUNE_KERNELS_LEVEL": level, "PYTHONPATH": paths}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found, right = result.stdout.split()
    assert right == "True"
    assert found == level or level != "portable"


def test_without_kernels_the_reference_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = block(tmp_path)
    wanted = load(path, threads=1, tune=False)(images(2))
    monkeypatch.setenv("SOFTPRUNE_KERNELS", "none")
    library.cache_clear()
    try:
        with pytest.warns(KernelWarning, match=r"engine\.build"):
            engine = load(path)
        assert engine.level == "reference"
        assert difference(engine(images(2)), wanted) < 2e-5
    finally:
        monkeypatch.undo()
        library.cache_clear()


def succeeds_in_a_fork(work: Callable[[], bool]) -> bool:
    """Whether a forked process says yes; one that waits for ever is ended, one that crashes says no."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")


@forks
def test_forked_process_has_threads_of_its_own(tmp_path: Path) -> None:
    engine = load(block(tmp_path), threads=2, tune=False)
    assert close(engine, 2)
    assert succeeds_in_a_fork(lambda: close(engine, 2))


@forks
@pytest.mark.parametrize("what", ["memory", "plan", "layers"])
def test_everything_that_needs_threads_works_in_a_fork(tmp_path: Path, what: str) -> None:
    from softprune.deploy.bench.race import layers

    engine = load(block(tmp_path), threads=2)
    assert close(engine, 1)
    works: dict[str, Callable[[], object]] = {
        "memory": lambda: engine.memory(2).total > 0,
        "plan": lambda: engine.plan(2).program.steps,
        "layers": lambda: layers(engine, batch=2, repeats=2),
    }
    assert succeeds_in_a_fork(lambda: bool(works[what]()) and close(engine, 2))


@forks
def test_a_fork_does_not_wait_for_a_thread_that_it_has_not(tmp_path: Path) -> None:
    engine = load(block(tmp_path), threads=2, tune=False)
    with engine._local().lock:  # as another thread of the parent would hold it
        assert succeeds_in_a_fork(lambda: close(engine, 1) and engine.memory().total > 0)


@forks
def test_a_file_that_is_cut_short_later_harms_nothing(tmp_path: Path) -> None:
    engine = load(path := block(tmp_path), threads=1, tune=False)
    path.write_bytes(b"")
    assert succeeds_in_a_fork(lambda: close(engine, 2))


def test_large_files_are_mapped_and_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = load(path := block(tmp_path), threads=1, tune=False)
    assert copied.memory().file == path.stat().st_size
    monkeypatch.setattr(storage, "MAX_COPY", 100)
    mapped = load(path, threads=1, tune=False)
    assert mapped.memory().file == 0 and mapped.memory().tables == copied.memory().tables
    assert np.array_equal(mapped(images(2)), copied(images(2)))


@pytest.mark.parametrize("threads", [2.5, 2.0, True, "2"])
def test_threads_that_are_no_number_of_threads(tmp_path: Path, threads: Any) -> None:
    with pytest.raises(TypeError, match="whole number from 1 to 256"):
        load(block(tmp_path), threads=threads)
    assert load(block(tmp_path), threads=np.int64(2), tune=False).threads == 2  # type: ignore[arg-type]


def test_large_batches_of_small_samples_run_together(tmp_path: Path) -> None:
    weights = {"w": sparse(np.random.default_rng(0), (40, 30), 0.2)}
    ops = [op("linear", ["x"], "y", weight="w", **REST)]
    engine = load(write_net(tmp_path / "mlp.spx", {"x": (30,)}, ops, weights), threads=2, tune=False)
    x = np.random.default_rng(1).standard_normal((5000, 30)).astype(np.float32)
    assert difference(engine(x), reference(engine, [x])[0]) < 2e-5


def test_batch_that_cannot_be_split(tmp_path: Path) -> None:
    ops = [op("softmax", ["x"], "s", axis=0), op("permute", ["s"], "y", axes=[1, 0])]
    engine = load(write_net(tmp_path / "mix.spx", {"x": (5,)}, ops, {}), threads=1, tune=False)
    x = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    assert difference(engine(x), reference(engine, [x])[0]) < 1e-6


@pytest.mark.parametrize("density", [0.05, 0.6])
def test_every_way_to_compute_a_linear_layer_gives_the_same(tmp_path: Path, density: float) -> None:
    weights = {"w": sparse(np.random.default_rng(3), (37, 45), density)}
    ops = [op("linear", ["x"], "y", weight="w", bias=None, activation="relu", residual=None)]
    engine = load(write_net(tmp_path / "net.spx", {"x": (45,)}, ops, weights), threads=2, tune=False)
    if engine.level == "reference":
        pytest.skip("there are no compiled kernels here")
    x = np.random.default_rng(4).standard_normal((3, 45)).astype(np.float32)
    wanted = np.maximum(x @ weights["w"].T, 0)
    program = engine.plan(3).program
    (kernel,) = (step.kernel for step in program.steps if step.kernel is not None)
    assert {choice.kind for choice in kernel.choices()} >= {"index", "dense"}
    for choice in kernel.choices():
        for step in program.steps:
            if step.kernel is kernel:
                step.choose(choice)
        out = engine.slots(3)[-1]
        Executable(engine._kernels, engine.team, program).run([x.ctypes.data, out.ctypes.data])
        np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)


def test_views_are_made_exactly_where_nothing_need_be_copied() -> None:
    generator = np.random.default_rng(0)
    shapes = [(24,), (2, 12), (4, 6), (2, 3, 4), (1, 24, 1), (3, 1, 8), (2, 2, 2, 3), (12, 2, 1), (24, 1)]
    views = copies = 0
    for _ in range(400):
        first, second = (shapes[i] for i in generator.integers(len(shapes), size=2))
        array = np.arange(96, dtype=np.float32).reshape(24, 4)[:, : generator.integers(1, 5)]
        array = array[:, 0] if array.shape[1] > 1 else np.arange(24, dtype=np.float32)
        array = array.reshape(first).transpose(generator.permutation(len(first)))
        wanted, found = array.reshape(second), view_as(array, second)
        if found is None:
            assert not np.shares_memory(wanted, array)
            copies += 1
        else:
            assert np.array_equal(found, wanted) and np.shares_memory(found, array)
            views += 1
    assert views > 50 and copies > 50
    assert view_as(np.zeros((3, 0), np.float32), (0, 7)) is not None


def test_inputs_are_read_where_they_are() -> None:
    """No copy of a contiguous array or tensor is made on the way in."""
    x = np.zeros((3, 45), np.float32)
    assert _array("x", (None, 45), x) is x
    tensor = pytest.importorskip("torch").zeros(3, 45)
    assert _array("x", (None, 45), tensor).ctypes.data == tensor.data_ptr()
