"""The engines of a benchmark: what they run, how each is started, and in which precision it runs."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softprune.deploy.bench.race import Runner

Array = NDArray[np.float32]
FLOAT32, INT8, BF16 = "float32", "int8", "bf16"


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
    float_spx: str | None = None  # the network in float32, if ours is int8 and made from it
    int8: bool = False  # whether our engine computes in int8

    def file(self, engine: str, precision: str) -> str:
        """What another engine reads; an int8 network is made of the ONNX file once (`int8_files`)."""
        assert self.onnx is not None
        if precision != INT8 or (self.int8 and self.float_spx is None):
            return self.onnx
        return str(Path(self.onnx).with_name(f"{engine}-int8{'.xml' if engine == 'openvino' else '.onnx'}"))

    def inputs(self, seed: int = 0) -> list[Array]:
        random = np.random.default_rng(seed)  # the same numbers in every process
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


def start_float32(job: Job, inputs: list[Array]) -> tuple[Runner, dict[str, Any]]:
    """Our engine on the network that the int8 one was made of."""
    assert job.float_spx is not None
    runner, facts = start_softprune(replace(job, spx=job.float_spx, layers=False), inputs)
    return runner, {key: facts[key] for key in ("processor", "level", "starts")}


def start_onnxruntime(job: Job, inputs: list[Array], *, precision: str = FLOAT32) -> tuple[Runner, dict[str, Any]]:
    onnxruntime = import_module("onnxruntime")

    def session(options: Any) -> Any:
        options.intra_op_num_threads, options.inter_op_num_threads = job.threads, 1
        options.log_severity_level = 3  # errors
        return onnxruntime.InferenceSession(
            job.file("onnxruntime", precision), options, providers=["CPUExecutionProvider"]
        )

    opened = session(onnxruntime.SessionOptions())
    feed = {put.name: x for put, x in zip(opened.get_inputs(), inputs, strict=True)}
    facts: dict[str, Any] = {"version": str(onnxruntime.__version__)}
    if precision != FLOAT32:
        with TemporaryDirectory(prefix="softprune-bench-") as folder:
            options = onnxruntime.SessionOptions()
            options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
            session(options)
            nodes = import_module("onnx").load(options.optimized_model_filepath).graph.node
        counts = Counter(node.op_type for node in nodes)
        facts["layers"] = [sum(counts[kind] for kind in kinds) for kinds in (ORT_INT8, ORT_INT8 + ORT_FLOAT32)]
    return lambda: opened.run(None, feed), facts


# What ONNX Runtime calls its layers after it has optimised the network.
ORT_INT8 = ("QLinearConv", "ConvInteger", "QLinearMatMul", "QGemm", "MatMulInteger", "MatMulIntegerToFloat")
ORT_FLOAT32 = ("Conv", "FusedConv", "NhwcFusedConv", "MatMul", "FusedMatMul", "Gemm", "FusedGemm")


def start_openvino(job: Job, inputs: list[Array], *, precision: str = FLOAT32) -> tuple[Runner, dict[str, Any]]:
    """OpenVINO's engine for CPUs, for inputs of exactly these shapes and without a lower precision than wanted."""
    openvino = import_module("openvino")
    core = openvino.Core()
    bf16 = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if precision == BF16 and not bf16:
        raise ValueError("this processor has no instructions for bf16")
    model = core.read_model(job.file("openvino", precision))
    model.reshape({put.get_any_name(): list(x.shape) for put, x in zip(model.inputs, inputs, strict=True)})
    # Beside int8 layers the rest is in bf16, as OpenVINO has it by default: attention is nearly twice as fast so.
    hint = "bf16" if precision != FLOAT32 and bf16 else "f32"
    exact = {"INFERENCE_NUM_THREADS": job.threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": hint}
    compiled = core.compile_model(model, "CPU", exact)
    facts: dict[str, Any] = {"version": str(openvino.__version__)}
    if precision != FLOAT32:
        nodes = [{key: str(node.get_rt_info()[key].value) for key in ("layerType", "runtimePrecision")}
                 for node in compiled.get_runtime_model().get_ops()]  # fmt: skip
        ran = [node["runtimePrecision"] for node in nodes if node["layerType"] in OPENVINO_LAYERS]
        facts["layers"] = [sum(kind in OPENVINO_TYPES[precision] for kind in ran), len(ran)]
    request = compiled.create_infer_request()
    return lambda: request.infer(inputs), facts


OPENVINO_LAYERS = ("Convolution", "FullyConnected", "MatMul", "Deconvolution")
OPENVINO_TYPES = {INT8: ("u8", "i8"), BF16: ("bf16",)}


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
    "softprune-float32": start_float32,
    "onnxruntime": start_onnxruntime,
    "onnxruntime-int8": partial(start_onnxruntime, precision=INT8),
    "openvino": start_openvino,
    "openvino-int8": partial(start_openvino, precision=INT8),
    "openvino-bf16": partial(start_openvino, precision=BF16),
    "torch": start_torch,
}
# Engine -> packages it needs.
NEEDS = {
    "softprune-float32": (),
    "onnxruntime": ("onnx", "onnxruntime"),
    "onnxruntime-int8": ("onnx", "onnxruntime"),
    "openvino": ("onnx", "openvino"),
    "openvino-int8": ("onnx", "openvino", "nncf"),
    "openvino-bf16": ("onnx", "openvino"),
    "torch": ("torch",),
}
# Those that take part if none are named, beside a float32 and beside an int8 network.
USUAL = {False: ("onnxruntime", "openvino", "torch"), True: ("openvino-int8", "onnxruntime-int8", "softprune-float32")}


def precision_of(engine: str) -> str:
    """What another engine computes in."""
    return next((kind for kind in (INT8, BF16) if engine.endswith(f"-{kind}")), FLOAT32)


def opponents(wanted: Sequence[str] | None, *, module: bool, int8: bool = False) -> list[str]:
    """The names of the engines that take part beside ours, each once; None takes the usual ones that can be used.

    Args:
        wanted: the names.
        module: whether the network comes with its module, in float32.
        int8: whether our engine runs it in int8.
    """
    if wanted is None:
        usual = [name for name in USUAL[int8] if _unfit(name, module=module, int8=int8) is None]
        return [name for name in usual if not missing(name)]
    for name in wanted:
        if name == "onnxruntime-bf16":
            raise ValueError("ONNX Runtime has no layers in bf16 for CPUs: choose openvino-bf16 or onnxruntime-int8")
        if name not in NEEDS:
            raise ValueError(f"there is no engine {name!r} to compare with: choose from {', '.join(NEEDS)}")
        if (reason := _unfit(name, module=module, int8=int8)) is not None:
            raise ValueError(reason)
        if absent := missing(name):
            raise ImportError(f"{name} needs {' and '.join(absent)}: pip install 'softprune[bench]'")
    return list(dict.fromkeys(wanted))


def _unfit(name: str, *, module: bool, int8: bool) -> str | None:
    """Why an engine cannot run the network."""
    way_out = f"leave {name} out, or name a network of the zoo, such as zoo:resnet50/str-90.23"
    if name == "torch" and not module:
        return f"torch needs the module, which a .spx file does not hold: {way_out}"
    if name == "softprune-float32" and not (int8 and module):
        return "softprune-float32 takes part beside a network of the zoo in int8 alone: leave it out"
    if int8 and not module and precision_of(name) != INT8:
        return f"{name} computes in {precision_of(name)}, and the file holds an int8 network: {way_out} with --int8"
    return None


def missing(name: str) -> list[str]:
    """The packages that an engine needs and that are not installed."""
    return [package for package in NEEDS[name] if find_spec(package) is None]
