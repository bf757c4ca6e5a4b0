"""The engines of a benchmark: what they run, how each is started, and the processes that they run in."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.bench.race import Burst, Runner, run_burst

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Job:
    """One network with its input, for one engine after the other."""

    spx: str  # the file for our engine
    onnx: str | None  # the file for other engines, if one of them takes part
    zoo: str | None  # the name from which PyTorch makes the module, if there is one
    shapes: tuple[tuple[int, ...], ...]  # of the inputs, with the batch
    batch: int = 1  # samples per call
    threads: int = 1  # of each engine
    tune: bool = True  # whether our engine measures the fastest way to compute each layer
    layers: bool = True  # whether to time each layer too
    level: str | None = None  # instruction set of our kernels; None takes the best of the processor

    def inputs(self) -> list[Array]:
        random = np.random.default_rng(0)  # the same numbers in every process
        return [random.standard_normal(shape).astype(np.float32) for shape in self.shapes]


def first_numbers(outputs: Any, count: int = 4096) -> Array:
    """The first values of the first output, by which engines are compared."""
    if isinstance(outputs, list | tuple):
        outputs = outputs[0]
    elif not isinstance(outputs, np.ndarray) and hasattr(outputs, "values") and callable(outputs.values):
        outputs = next(iter(outputs.values()))
    return np.array(outputs, np.float32).reshape(-1)[:count]


# Makes a call that runs the network once, and facts about the engine.
Start = Callable[[Job, list[Array]], tuple[Runner, dict[str, Any]]]


def start_softprune(job: Job, inputs: list[Array]) -> tuple[Runner, dict[str, Any]]:
    if job.level is not None:
        os.environ["SOFTPRUNE_KERNELS_LEVEL"] = job.level
    from softprune.deploy.bench.race import layers, measure_roofline
    from softprune.deploy.engine.inference import load
    from softprune.deploy.engine.library import library
    from softprune.deploy.engine.planner import build
    from softprune.deploy.engine.tune import processor

    starts = []
    for _ in range(2):  # the second finds what the first has tuned
        begin = time.perf_counter()
        engine = load(job.spx, threads=job.threads, tune=job.tune)
        engine(*inputs)
        starts.append(time.perf_counter() - begin)
    facts: dict[str, Any] = {"processor": processor(), "level": engine.level, "starts": starts}
    kernels = library()
    if kernels is not None:
        roof = measure_roofline(kernels)
        steps = build(engine.model, kernels, batch=1, threads=job.threads).program.steps
        facts |= {"roofline": asdict(roof), "macs": sum(step.macs for step in steps)}
        if job.layers:
            facts["layers"] = [asdict(layer) for layer in layers(engine, roofline=roof)]
    return lambda: engine(*inputs), facts


def start_onnxruntime(job: Job, inputs: list[Array]) -> tuple[Runner, dict[str, Any]]:
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = job.threads, 1
    session = onnxruntime.InferenceSession(job.onnx, options, providers=["CPUExecutionProvider"])
    feed = {put.name: x for put, x in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feed), {"version": str(onnxruntime.__version__)}


def start_openvino(job: Job, inputs: list[Array]) -> tuple[Runner, dict[str, Any]]:
    """OpenVINO's engine for CPUs, for inputs of exactly these shapes and without lower precision."""
    openvino = import_module("openvino")
    core = openvino.Core()
    model = core.read_model(job.onnx)
    model.reshape({put.get_any_name(): list(x.shape) for put, x in zip(model.inputs, inputs, strict=True)})
    exact = {"INFERENCE_NUM_THREADS": job.threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(model, "CPU", exact).create_infer_request()
    return lambda: request.infer(inputs), {"version": str(openvino.__version__)}


def start_torch(job: Job, inputs: list[Array]) -> tuple[Runner, dict[str, Any]]:
    """PyTorch in eager mode, without compilation."""
    import torch

    from softprune.deploy.export.zoo import sparse_network

    assert job.zoo is not None
    torch.set_num_threads(job.threads)
    module = sparse_network(job.zoo)
    tensors = [torch.from_numpy(x) for x in inputs]

    def call() -> Any:
        with torch.inference_mode():
            return module(*tensors).numpy()

    return call, {"version": str(torch.__version__)}


ENGINES: dict[str, Start] = {
    "softprune": start_softprune,
    "onnxruntime": start_onnxruntime,
    "openvino": start_openvino,
    "torch": start_torch,
}
# Engine -> packages it needs.
NEEDS = {"onnxruntime": ("onnx", "onnxruntime"), "openvino": ("onnx", "openvino"), "torch": ("torch",)}

PATIENCE = 900.0  # seconds until a silent process is given up; a large network is tuned in a fraction of it


class EngineError(OSError):
    """An engine could not run the network; the others could."""


class Worker:
    """A process with one engine, which ends when the pipe to it does; ``patience`` seconds are waited for an answer."""

    def __init__(self, engine: str, job: Job, *, patience: float = PATIENCE) -> None:
        self.engine, self._patience = engine, patience
        context = multiprocessing.get_context("spawn")
        self._pipe, self._there = context.Pipe()
        self.process = context.Process(target=work, args=(self._there, engine, job), daemon=True)

    def __enter__(self) -> Worker:
        self.process.start()
        self._there.close()  # so that the pipe ends with the process
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self.process.join(5 if kind is None else 0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def start(self) -> dict[str, Any]:
        """Facts about the engine after it has run the network once, the first numbers of its result as "output".

        An EngineError says that it cannot run it, died or is silent; so in `burst`.
        """
        facts = self._answer("loading the network")
        if "error" in facts:
            raise EngineError(f"{self.engine} cannot run the network: {facts['error']}")
        return dict(facts)

    def burst(self, seconds: float) -> Burst:
        with suppress(OSError):  # the answer tells that it is dead
            self._pipe.send(seconds)
        burst = self._answer("it was timed")
        assert isinstance(burst, Burst)
        return burst

    def _answer(self, what: str) -> Any:
        if not self._pipe.poll(self._patience):
            raise EngineError(f"the process of {self.engine} said nothing for {self._patience:g} s while {what}")
        try:
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            self.process.join(5)
            code = self.process.exitcode
            raise EngineError(f"the process of {self.engine} ended with exit code {code} while {what}") from error


def work(pipe: Connection, engine: str, job: Job) -> None:
    """The process of a `Worker`: sends facts once the network has run, then a burst for every duration received."""
    try:
        call, facts = ENGINES[engine](job, job.inputs())
        pipe.send({**facts, "output": first_numbers(call())})
    except Exception as error:
        pipe.send({"error": f"{type(error).__name__}: {error}"})
        return
    with suppress(EOFError, OSError):  # the other end is closed when nothing more is wanted
        while True:
            pipe.send(run_burst(call, pipe.recv()))


def opponents(wanted: Sequence[str] | None, *, module: bool) -> list[str]:
    """The names of the engines that take part beside ours, each once; None takes all that can be used.

    ``module`` says whether there is a module that PyTorch could run.
    """
    if wanted is None:
        return [name for name in NEEDS if not missing(name) and (module or name != "torch")]
    if unknown := [name for name in wanted if name not in NEEDS]:
        raise ValueError(f"there is no engine {unknown[0]!r} to compare with: choose from {', '.join(NEEDS)}")
    for name in wanted:
        if name == "torch" and not module:
            raise ValueError(
                "torch needs the module, which a .spx file does not hold: leave torch out, or name a network of the "
                "zoo, such as zoo:resnet50/str-90.23"
            )
        if absent := missing(name):
            raise ImportError(f"{name} needs {' and '.join(absent)}: pip install 'softprune[bench]'")
    return list(dict.fromkeys(wanted))


def missing(name: str) -> list[str]:
    """The packages that an engine needs and that are not installed."""
    return [package for package in NEEDS[name] if find_spec(package) is None]
