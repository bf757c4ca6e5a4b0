"""Write a network with a published budget and random weights: the zeros decide the time, the values do not.

python tests/deploy/make_spx.py resnet50/str-90.23 resnet50.spx [--size 224]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from softprune.deploy.export import export
from softprune.deploy.export.zoo import sparse_network, zoo_example


def make_spx(name: str, path: Path, *, size: int = 224) -> Path:
    """Write ``path`` with the network of ``sparse_network`` for images of ``size`` pixels a side."""
    return export(sparse_network(name), path, example=zoo_example(name, size=size))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("path", type=Path)
    parser.add_argument("--size", type=int, default=224)
    given = parser.parse_args()
    make_spx(given.name, given.path, size=given.size)
