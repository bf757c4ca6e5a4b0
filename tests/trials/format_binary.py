"""The formats that are bytes: tensors, checkpoints, torch files, data sets, studies, and networks of the engine."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import shutil
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import trial_parts
from data_files import idx, python2_pickle
from format_text import SWEEP, Format, Read, _placed
from fuzz_case import try_file
from fuzz_mutations import MUTATIONS
from fuzz_seeds import write_seeds
from PIL import Image
from sequence_files import wav, write_features

from softprune import STR, sparsify
from softprune.core.state_file import read_state, read_str_checkpoint, read_torch_file, write_state
from softprune.deploy.export import from_pretrained, load_compressed, save_compressed
from softprune.deploy.export.formats import save_pretrained
from softprune.nn.catalog import build
from softprune.records import parse_json
from softprune.train.assembly import Assembly, Processes, assemble, open_source
from softprune.train.checkpoints import Checkpoints, read_checkpoint, restore
from softprune.train.config import RunConfig
from softprune.train.config.keys import write_yaml
from softprune.train.data.cifar import PIXELS, _read_binary, _read_python
from softprune.train.data.files import Counts, read_idx, read_wav
from softprune.train.data.har import FOLDER, SIGNALS, STEPS, read_har2
from softprune.train.data.image_folder import open_rgb
from softprune.train.data.speech import read_features
from softprune.train.load_run import read_weights
from softprune.train.trainer import Position

ALONE = Processes(rank=0, world=1, device=torch.device("cpu"))
TWO = Counts(train=(1, 1), test=(1, 1))


def binary_formats(folder: Path, *, slow: bool = True) -> Iterator[Format]:
    """All of them; their seeds and scratch files are below ``folder``. Without what takes seconds unless ``slow``."""
    seeds = folder / "binary seeds"
    seeds.mkdir(parents=True)
    yield from _tensors(seeds)
    yield from _runs(seeds)
    yield from _study(seeds) if slow else ()
    yield from _data(seeds)
    yield from _sequences(seeds)
    yield _networks(seeds, exported=slow)


def _state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 6, generator=generator) * (torch.rand(4, 6, generator=generator) < 0.3)
    return {"fc.weight": weight, "fc.bias": torch.ones(4), "bn.num_batches_tracked": torch.tensor(3)}


def _tensors(seeds: Path) -> Iterator[Format]:
    """Files of tensors in every way that we read them."""
    state = _state()
    compressed = save_compressed({**state, "tied": state["fc.weight"]}, seeds / "c.safetensors").read_bytes()
    yield Format(
        "compressed tensors",
        "safetensors",
        (compressed,),
        _file("c.safetensors", lambda path: load_compressed(path, max_bytes=1 << 24)),
        50,
    )
    write_state(seeds / "s.safetensors", state, {"format": "trial", "step": 3, "names": ["a", "b"]})
    held = (seeds / "s.safetensors").read_bytes()
    yield Format("state file", "safetensors", (held,), _file("s.safetensors", read_state), 40)
    from softprune.core.state_file import write_tensors

    write_tensors(seeds / "w.safetensors", state)
    plain = (seeds / "w.safetensors").read_bytes()
    yield Format("weights", "safetensors", (plain,), _file("w.safetensors", read_weights), 30)
    authors = {**state, "fc.sparseThreshold": torch.tensor([[-3.0]])}
    for name, kind, modern in (("torch file", "zip", True), ("torch file, legacy", "bytes", False)):
        files = []
        for content in (state, {"state_dict": authors, "lr": np.float64(0.1), "epoch": 3}):
            made = io.BytesIO()
            torch.save(content, made, _use_new_zipfile_serialization=modern)
            files.append(made.getvalue())
        yield Format(name, kind, tuple(files), _read_torch, 20)


def _read_torch(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
    path = _placed(folder / "model.pth", content)
    if seed == 1 and dice.random() < 0.5:
        read_str_checkpoint(path)
    else:
        read_torch_file(path)
    return "read"


def _file(name: str, reader: object) -> Read:
    def read(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
        reader(_placed(folder / name, content))  # type: ignore[operator]
        return "read"

    return read


def _assembled() -> Assembly:
    config = RunConfig.parse(trial_parts.SHORT)
    return assemble(config, open_source(config), ALONE)


def _runs(seeds: Path) -> Iterator[Format]:
    """Checkpoints of runs and sparsifiers, folders of the hub, studies: read, and taken over by what they are for."""
    parts = _assembled()
    for parameter in parts.model.parameters():
        parts.optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
    progress = {"step": 2, "accuracy": 0.5, "sparsity": 0.1, "best": None, "seconds": 1.0}
    path = Checkpoints(seeds / "checkpoints", keep=2).save(parts, progress)
    tensors, facts = read_state(path)

    def continued(path: Path) -> None:
        found, said = read_checkpoint(path)
        restore(_assembled(), found, said)
        Position.read(said["progress"])

    def rewritten(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
        # By our own writer, which makes the sums of what it is given: damage is noticed by them, intent is not.
        write_state(folder / "step-000000002.safetensors", tensors, parse_json(content.decode(), "the case"))
        continued(folder / "step-000000002.safetensors")
        return "read"

    name = "step-000000002.safetensors"
    yield Format("checkpoint", "safetensors", (path.read_bytes(),), _file(name, continued), 3)
    yield Format("checkpoint facts", "object", (json.dumps(facts).encode(),), rewritten, 4)
    sparsifier = sparsify(trial_parts.small(), STR(s_init=-5.0))
    sparsifier.save(seeds / "sparsifier")
    held, said = read_state(seeds / "sparsifier" / "state.safetensors")

    def loaded(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
        write_state(folder / "state.safetensors", held, parse_json(content.decode(), "the case"))
        sparsify(trial_parts.small(), STR(s_init=-5.0)).load(folder)
        return "read"

    yield Format("sparsifier folder", "object", (json.dumps(said).encode(),), loaded, 4)
    yield from _hub(seeds)


def _hub(seeds: Path) -> Iterator[Format]:
    whole = save_pretrained(build("digits", {}), seeds / "hub", network="digits")

    def reader(name: str) -> Read:
        def read(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
            if not (folder / "config.json").exists():
                shutil.copytree(whole, folder, dirs_exist_ok=True)
            _placed(folder / name, content)
            from_pretrained(folder)
            return "read"

        return read

    for name, kind, share in (("config.json", "json", 3), ("model.safetensors", "safetensors", 2)):
        yield Format(f"hub {name}", kind, ((whole / name).read_bytes(),), reader(name), share)


def _study(seeds: Path) -> Iterator[Format]:
    try:
        from softprune.train.sweep import study as storage
        from softprune.train.sweep.folder import open_study
        from softprune.train.sweep.sweep import Sweep
    except ImportError:  # Optuna is an extra
        return
    whole = seeds / "study"
    whole.mkdir()
    (whole / "sweep.yaml").write_text(write_yaml(SWEEP))
    sweep = Sweep.load(whole / "sweep.yaml")
    open_study(sweep, whole).close()
    # In a file of its own, without the log beside it.
    content = (whole / "study.db").read_bytes()

    def read(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
        for file in folder.iterdir():
            file.unlink()
        _placed(folder / "study.db", content)
        storage.time = _Hasty()  # type: ignore[assignment]
        study = open_study(sweep, folder)
        study.slots()
        study.close()
        return "read"

    yield Format("study", "bytes", (content,), read, 0.15)


class _Hasty:
    """A clock whose pauses are over at once."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def sleep(seconds: float) -> None:
        """Nothing."""


def _data(seeds: Path) -> Iterator[Format]:
    """Images: idx, CIFAR's three layouts, single files."""
    noise = np.random.default_rng(0)
    images = noise.integers(0, 256, (3, 4, 4), dtype=np.uint8)
    shapes = ((3, 4, 4), (10,))
    plain = (idx(images), idx(np.arange(10, dtype=np.uint8)))

    def read_plain(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
        read_idx(_placed(folder / "i", content), shapes[seed])
        return "read"

    def read_compressed(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
        read_idx(_placed(folder / "i.gz", content), shapes[seed])
        return "read"

    yield Format("idx", "bytes", plain, read_plain, 60)
    yield Format("idx, compressed", "bytes", tuple(map(gzip.compress, plain)), read_compressed, 40)
    pixels = noise.integers(0, 256, (2, PIXELS), dtype=np.uint8)

    def read_pickle(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
        # With the sum of what it is: it shows damage, not intent.
        path = _placed(folder / "data_batch_1", content)
        _read_python(path, "md5", hashlib.md5(content, usedforsecurity=False).hexdigest())
        return "read"

    def read_binary(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
        path = _placed(folder / "data_batch_1.bin", content)
        _read_binary(path, "sha1", hashlib.sha1(content, usedforsecurity=False).hexdigest())
        return "read"

    whole = python2_pickle(pixels, [3, 4])
    yield Format("CIFAR pickle", "pickle", (whole, python2_pickle(pixels[:1], [1])), read_pickle, 60)
    yield Format("CIFAR binary", "bytes", (b"\x03" + pixels[0].tobytes(),), read_binary, 10)
    pictures = []
    for mode, form in (("RGB", "PNG"), ("L", "PNG"), ("P", "PNG"), ("RGB", "JPEG"), ("I;16", "PNG")):
        made = io.BytesIO()
        array = noise.integers(0, 256, (5, 6), dtype=np.uint16 if mode == "I;16" else np.uint8)
        image = Image.fromarray(array) if mode == "I;16" else Image.fromarray(array).convert(mode)
        image.save(made, form)
        pictures.append(made.getvalue())
    yield Format("image", "bytes", tuple(pictures), _file("image.png", open_rgb), 20)


def _sequences(seeds: Path) -> Iterator[Format]:
    """Sound and motion: wav, ready features, HAR as text and as zip."""
    noise = np.random.default_rng(0)
    clip = wav(noise.integers(-99, 99, 40))
    yield Format("wav", "bytes", (clip,), _file("a.wav", lambda path: read_wav(path, longest=99)), 60)
    write_features(seeds / "features.zip")
    features = (seeds / "features.zip").read_bytes()
    yield Format("features zip", "zip", (features,), _file("f.zip", lambda path: read_features(path, "training")), 4)
    files = {}
    for part in ("train", "test"):
        files[f"{part}/y_{part}.txt"] = b"2\n1\n"
        files[f"{part}/subject_{part}.txt"] = b"1\n2\n"
        for signal in SIGNALS:
            values = noise.normal(size=(2, STEPS)).round(4)
            text = "".join("".join(f" {value:.7e}" for value in row) + "\n" for row in values)
            files[f"{part}/Inertial Signals/{signal}_{part}.txt"] = text.encode()
    names = [name for name in files if name.startswith("train/")][:4]

    def read_text(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
        if not (folder / FOLDER).exists():
            for name, whole in files.items():
                (folder / FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / FOLDER / name).write_bytes(whole)
        _placed(folder / FOLDER / names[seed], content)
        try:
            read_har2(folder, counts=TWO)
        finally:
            (folder / FOLDER / names[seed]).write_bytes(files[names[seed]])
        return "read"

    yield Format("HAR text", "bytes", tuple(files[name] for name in names), read_text, 8)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, whole in files.items():
            archive.writestr(f"{FOLDER}/{name}", whole)
    read_zip = _file(f"{FOLDER}.zip", lambda path: read_har2(path.parent, counts=TWO))
    yield Format("HAR zip", "zip", (made.getvalue(),), read_zip, 4)


def _networks(seeds: Path, *, exported: bool) -> Format:
    """Networks of the engine, which also run."""
    files = [path.read_bytes() for path in write_seeds(seeds, exported=exported)]

    def read(content: bytes, seed: int, folder: Path, dice: random.Random) -> str:
        path = folder / "model.spx"
        path.unlink(missing_ok=True)  # the file before may still be mapped
        path.write_bytes(content)
        return {"run": "read"}.get(try_file(path, dice), "refused")

    return Format("spx", "spx", tuple(files), read, 65)


SPX_MUTATIONS = tuple(MUTATIONS.values())
