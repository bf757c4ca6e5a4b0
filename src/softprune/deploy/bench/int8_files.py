"""Dense int8 networks for other engines, made of a float32 ONNX file by the tools that their users take."""

from __future__ import annotations

import io
import logging
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from softprune.deploy.bench.engine_process import EngineError
from softprune.deploy.bench.engines import INT8, Array, Job, precision_of

SAMPLES = 4  # random inputs, on which ranges are measured: times do not depend on them


def make_int8_file(engine: str, job: Job) -> None:
    """Make the file that an engine reads in int8, unless it is there; in a process of its own."""
    if precision_of(engine) != INT8 or job.onnx is None:
        return
    target = Path(job.file(engine.removesuffix(f"-{INT8}"), INT8))
    if target.is_file():
        return
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            pool.submit(_make, engine, job, target).result()
    except Exception as error:
        raise EngineError(f"{engine} cannot quantise the network: {type(error).__name__}: {error}") from error


def _make(engine: str, job: Job, target: Path) -> None:
    one = Job(job.spx, job.onnx, job.zoo, tuple((1, *shape[1:]) for shape in job.shapes))
    samples = [one.inputs(seed) for seed in range(SAMPLES)]
    assert job.onnx is not None
    # A file is there whole or not at all.
    with TemporaryDirectory(dir=target.parent) as folder, redirect_stdout(io.StringIO()):
        logging.disable(logging.WARNING)
        (_by_nncf if engine.startswith("openvino") else _by_onnxruntime)(job.onnx, samples, Path(folder) / target.name)
        for path in sorted(Path(folder).iterdir()):  # the weights of OpenVINO, .bin, before their network, .xml
            path.replace(target.parent / path.name)


def _by_nncf(onnx: str, samples: list[list[Array]], target: Path) -> None:
    """OpenVINO's own quantiser, with all defaults but the one it wants for transformers."""
    openvino, nncf = import_module("openvino"), import_module("nncf")
    # Not read_model: what it leaves to be folded hides the weights of depthwise layers from the quantiser.
    model = openvino.convert_model(onnx)
    names = [put.get_any_name() for put in model.inputs]
    data = nncf.Dataset([dict(zip(names, sample, strict=True)) for sample in samples])
    attention = any(op.get_type_name() == "Softmax" for op in model.get_ops())
    kind = nncf.ModelType.TRANSFORMER if attention else None
    quantised = nncf.quantize(model, data, subset_size=len(samples), model_type=kind)
    openvino.save_model(quantised, str(target), compress_to_fp16=False)


def _by_onnxruntime(onnx: str, samples: list[list[Array]], target: Path) -> None:
    """ONNX Runtime's own quantiser: weights s8 per output channel, activations u8."""
    tools = import_module("onnxruntime.quantization")
    names = [put.name for put in import_module("onnx").load(onnx).graph.input]
    feeds = iter([dict(zip(names, sample, strict=True)) for sample in samples])

    class RandomInputs(tools.CalibrationDataReader):  # type: ignore[name-defined, misc]
        def get_next(self) -> Any:
            return next(feeds, None)

    kinds = tools.QuantType
    tools.quantize_static(
        onnx,
        str(target),
        RandomInputs(),
        quant_format=tools.QuantFormat.QDQ,
        per_channel=True,
        activation_type=kinds.QUInt8,
        weight_type=kinds.QInt8,
    )
