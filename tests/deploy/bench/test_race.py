"""Interleaved bursts: what is kept, what is dropped, what is said."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from spx_compare import block

from softprune.deploy.bench.race import Burst, Race, layers, measure_roofline, race
from softprune.deploy.engine.inference import load
from softprune.deploy.engine.library import library


def test_disturbed_bursts_are_dropped() -> None:
    ours = [Burst(1.0, 1.1, 0.99), Burst(5.0, 6.0, 0.40), Burst(1.2, 1.3, 1.0)]
    theirs = [Burst(3.0, 3.1, 1.0), Burst(3.0, 3.0, 1.0), Burst(3.6, 3.7, 0.98)]
    result = Race({"ours": ours, "theirs": theirs})
    standing = result.standing("ours")
    assert (standing.seconds, standing.bursts, standing.dropped) == (1.0, 2, 1)
    ratio = result.ratio("ours", "theirs")
    assert ratio.median == pytest.approx(3.0)
    assert ratio.best == pytest.approx(3.0)
    assert ratio.low <= ratio.median <= ratio.high


def test_ratio_when_no_two_quiet_bursts_meet() -> None:
    quiet, disturbed = Burst(1.0, 1.0, 1.0), Burst(9.0, 9.0, 0.1)
    result = Race({"a": [quiet, disturbed], "b": [disturbed, Burst(2.0, 2.0, 1.0)]})
    assert result.ratio("a", "b").best == pytest.approx(2.0)


def test_runners_take_turns() -> None:
    order: list[str] = []
    race({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, bursts=2, seconds=0.0)
    changes = sum(x != y for x, y in pairwise(order[2:]))
    assert changes == 3


def test_layers_count_nonzeros_and_macs(tmp_path: Path) -> None:
    engine = load(block(tmp_path), threads=1, tune=False)
    table = {layer.path: layer for layer in layers(engine, repeats=1) if layer.what == "conv2d"}
    assert len(table) == 4
    assert all(layer.nonzeros > 0 and layer.microseconds > 0 for layer in table.values())
    count = engine.model.weights["c"].count()
    assert table["net.c"].nonzeros == count
    assert table["net.c"].macs == count * 12 * 12


def test_roofline_is_measured() -> None:
    kernels = library()
    assert kernels is not None
    roof = measure_roofline(kernels)
    assert roof.l1 > 0 and roof.l2 > 0
