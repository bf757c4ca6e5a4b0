"""How each engine is started; every function here runs in the process of its engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from typing import Any

from softprune.deploy.bench.job import Array, Job
from softprune.deploy.runtime.race import Runner

# A call that runs the network once, and facts about the engine.
Start = Callable[[Job, list[Array]], tuple[Runner, dict[str, Any]]]


def start_softprune(job: Job, inputs: list[Array]) -> tuple[Runner, dict[str, Any]]:
    """Our engine, with its table of layers."""
    if job.level is not None:
        os.environ["SOFTPRUNE_KERNELS_LEVEL"] = job.level
    from softprune.deploy.runtime.bench import layers
    from softprune.deploy.runtime.cache import processor
    from softprune.deploy.runtime.engine import load
    from softprune.deploy.runtime.library import library
    from softprune.deploy.runtime.planner import build
    from softprune.deploy.runtime.roofline import measure_roofline

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
    """ONNX Runtime's engine for CPUs."""
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
    """PyTorch as it is, without compilation."""
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
