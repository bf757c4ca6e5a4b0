"""From a module with zeros in it to files that other programs run."""

from softprune.deploy.export.c import export_c
from softprune.deploy.export.compressed import load_compressed, save_compressed
from softprune.deploy.export.exporting import Accelerated, accelerate, export, save_program, write_spx
from softprune.deploy.export.formats import from_pretrained, save_pretrained, save_safetensors
from softprune.deploy.export.onnx import export_onnx, spx_to_onnx, write_onnx_int8
from softprune.deploy.export.onnx_read import read_onnx_int8
from softprune.deploy.export.pt2e import read_pt2e

__all__ = [
    "Accelerated",
    "accelerate",
    "export",
    "export_c",
    "export_onnx",
    "from_pretrained",
    "load_compressed",
    "read_onnx_int8",
    "read_pt2e",
    "save_compressed",
    "save_pretrained",
    "save_program",
    "save_safetensors",
    "spx_to_onnx",
    "write_onnx_int8",
    "write_spx",
]
