"""From a module with zeros in it to files that other programs run."""

from softprune.deploy.export.acceleration import Accelerated, accelerate
from softprune.deploy.export.c import export_c
from softprune.deploy.export.compression import load_compressed, save_compressed
from softprune.deploy.export.exporting import export
from softprune.deploy.export.folder import from_pretrained, save_pretrained, save_safetensors
from softprune.deploy.export.onnx_file import export_onnx
from softprune.deploy.export.program import save_program

__all__ = [
    "Accelerated",
    "accelerate",
    "export",
    "export_c",
    "export_onnx",
    "from_pretrained",
    "load_compressed",
    "save_compressed",
    "save_pretrained",
    "save_program",
    "save_safetensors",
]
