"""Ways to spoil a .spx file, from single bytes to graphs that are wrong in one place only."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NUMBERS = (-1, 0, 1, 2, 3, 7, 16, 255, 65536, (1 << 24) - 1, 1 << 31, (1 << 63) - 1, 1 << 64, 10**400, -(1 << 70))
OTHERS = (0.5, float("nan"), float("inf"), -1e308, None, True, "", "x", [], [1, 1], [0, -1], {}, [[]])
FLOATS = (float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-45, 3e38, -1.0)
STEPS = (-2, -1, 1, 2, 5)
FACTORS = (-1.0, 0.0, 1e-40, 1e-20, 1e-3, 3.0, 1e3, 1e20, 1e40)
WHOLE = {"I8": ("<b", (-128, -127, 0, 1, 127)), "I32": ("<i", (-(1 << 31), -1, 0, (1 << 30) - 1, (1 << 31) - 1))}
REFERENCES = ("weight", "bias", "scale", "shift", "mask", "residual", "factor", "table")


@dataclass
class Parts:
    """A file taken apart."""

    header: dict[str, Any]
    graph: dict[str, Any]
    body: bytearray

    @classmethod
    def of(cls, content: bytes) -> Parts:
        """Take a valid file apart."""
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        return cls(header, json.loads(header["__metadata__"]["graph"]), bytearray(content[8 + length :]))

    def joined(self) -> bytes:
        """Put it together again, with the right length in front."""
        if isinstance(self.header.get("__metadata__"), dict):
            self.header["__metadata__"]["graph"] = json.dumps(self.graph)
        text = json.dumps(self.header).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + bytes(self.body)

    def tensors(self) -> list[str]:
        """The names of the tensors that hold something."""
        names = [name for name in self.header if name != "__metadata__"]
        return [n for n in names if self.header[n]["data_offsets"][0] < self.header[n]["data_offsets"][1]]


def anywhere(content: bytes, dice: random.Random) -> bytes:
    """Change, insert, remove or repeat some bytes of the whole file."""
    changed = bytearray(content)
    for _ in range(dice.randint(1, 3)):
        place, count = dice.randrange(len(changed)), dice.randint(1, 9)
        kind = dice.randrange(5)
        if kind == 0:
            changed[place] = dice.randrange(256)
        elif kind == 1:
            changed[place] ^= 1 << dice.randrange(8)
        elif kind == 2:
            del changed[place : place + count]
        elif kind == 3:
            changed[place:place] = dice.randbytes(count)
        else:
            changed[place:place] = changed[place : place + count]
    return bytes(changed) or b"\0"


def cut(content: bytes, dice: random.Random) -> bytes:
    """Cut the file short, or add to its end, or say another length of the header."""
    kind = dice.randrange(3)
    if kind == 0:
        return content[: dice.randrange(len(content))]
    if kind == 1:
        return content + dice.randbytes(dice.randint(1, 99))
    length = int.from_bytes(content[:8], "little")
    wrong = dice.choice([0, 1, length - 8, length + 8, len(content), 1 << 31, 1 << 63, (1 << 64) - 1])
    return (wrong % (1 << 64)).to_bytes(8, "little") + content[8:]


def data(content: bytes, dice: random.Random) -> bytes:
    """Change bytes of masks, gaps and values; the header stays."""
    parts = Parts.of(content)
    for _ in range(dice.randint(1, 5)):
        parts.body[dice.randrange(len(parts.body))] ^= 1 << dice.randrange(8)
    return parts.joined()


def structure(content: bytes, dice: random.Random) -> bytes:
    """Move nonzeros: bits of a mask change places, a gap gives to another, so that all counts still fit.

    The last bytes of Rice codes, which are the lower bits of gaps, may become any others.
    """
    parts = Parts.of(content)
    names = [name for name in parts.tensors() if name.endswith((".mask", ".gaps", ".rice"))]
    for name in dice.sample(names, min(len(names), dice.randint(1, 3))):
        begin, end = parts.header[name]["data_offsets"]
        if name.endswith(".mask"):
            for _ in range(dice.randint(1, 20)):
                first, second = dice.randrange(begin, end), dice.randrange(begin, end)
                parts.body[first], parts.body[second] = parts.body[second], parts.body[first]
        elif name.endswith(".rice"):
            parts.body[dice.randrange((begin + end) // 2, end)] ^= 1 << dice.randrange(8)
        elif parts.header[name]["dtype"] == "U8":
            first, second = dice.randrange(begin, end), dice.randrange(begin, end)
            moved = min(dice.choice([1, 3, 255]), parts.body[first], 255 - parts.body[second])
            parts.body[first] -= moved
            parts.body[second] += moved
    return parts.joined()


def values(content: bytes, dice: random.Random) -> bytes:
    """Weights that are no numbers, infinite, zero or huge."""
    parts = Parts.of(content)
    forms = {"F32": ("<f", FLOATS), **WHOLE}
    names = [name for name in parts.tensors() if parts.header[name]["dtype"] in forms]
    for _ in range(dice.randint(1, 4)):
        entry = parts.header[dice.choice(names)]
        form, numbers = forms[entry["dtype"]]
        size = struct.calcsize(form)
        place = dice.randrange(*entry["data_offsets"], size)
        parts.body[place : place + size] = struct.pack(form, dice.choice(numbers))
    return parts.joined()


def header(content: bytes, dice: random.Random) -> bytes:
    """Entries of tensors that trade places, types, shapes and offsets; metadata that is wrong."""
    parts = Parts.of(content)
    first, second = (dice.choice(parts.tensors()) for _ in range(2))
    entry, other = parts.header[first], parts.header[second]
    kind = dice.randrange(6)
    if kind == 0:
        parts.header[first], parts.header[second] = other, entry
    elif kind == 1:
        entry["data_offsets"] = dice.choice([other["data_offsets"], [n + dice.choice(STEPS) for n in (0, 4)]])
    elif kind == 2:
        entry["dtype"] = dice.choice(["U8", "U16", "I8", "I32", "F32", "F64", "BF16", 7])
    elif kind == 3:
        entry["shape"] = dice.choice([[*entry["shape"], 1], entry["shape"][::-1], [1 << 62, 4], other["shape"], []])
    elif kind == 4:
        parts.header[dice.choice([f"{first}x", "", "__metadata__"])] = parts.header.pop(first)
    else:
        change(parts.header, dice)
    return parts.joined()


def anything(content: bytes, dice: random.Random) -> bytes:
    """Change any value of the graph into any other."""
    parts = Parts.of(content)
    for _ in range(dice.randint(1, 2)):
        change(parts.graph, dice)
    return parts.joined()


def change(node: Any, dice: random.Random) -> None:
    """Walk down at random and change what is found."""
    while True:
        keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = dice.choice(keys)
        child = node[key]
        if isinstance(child, dict | list) and child and dice.random() < 0.85:
            node = child
        elif dice.random() < 0.1 and isinstance(node, dict):
            del node[key]
            return
        else:
            # A copy: the next change may walk into it.
            node[key] = copy.deepcopy(dice.choice(NUMBERS if dice.random() < 0.5 else OTHERS))
            return


def numbers(content: bytes, dice: random.Random) -> bytes:
    """Change one number of an operation by a little, or one with a point by much: what is near to valid gets far."""
    parts = Parts.of(content)
    found = []
    for entry in parts.graph["ops"]:
        for key, value in entry.items():
            if isinstance(value, list) and key != "inputs":
                found += [(value, i) for i, n in enumerate(value) if isinstance(n, int)]
            elif isinstance(value, int | float):
                found.append((entry, key))
    for _ in range(dice.randint(1, 2) if found else 0):
        place, key = dice.choice(found)
        old = place[key]
        if isinstance(old, float) and dice.random() < 0.5:
            place[key] = old * dice.choice(FACTORS)
        else:
            place[key] = (not old) if isinstance(old, bool) else old + dice.choice(STEPS)
    return parts.joined()


def sizes(content: bytes, dice: random.Random) -> bytes:
    """Give the inputs another size, so that everything behind them has another too."""
    parts = Parts.of(content)
    shape = dice.choice(parts.graph["inputs"])["shape"]
    for axis in range(len(shape)):
        if dice.random() < (0.1 if axis < 2 else 0.7):
            shape[axis] = dice.choice([dice.randint(0, 40), dice.randint(1, 12), 64, 1 << 20, 1 << 40])
    return parts.joined()


def weights(content: bytes, dice: random.Random) -> bytes:
    """Give a weight another shape with as many numbers, or another storage, and a name to another."""
    parts = Parts.of(content)
    names = list(parts.graph["weights"])
    first, second = dice.choice(names), dice.choice(names)
    entry = parts.graph["weights"][first]
    kind = dice.randrange(4)
    if kind == 0:
        dice.shuffle(entry["shape"])
    elif kind == 1 and len(entry["shape"]) > 1:
        i, j = dice.sample(range(len(entry["shape"])), 2)
        factor = next((f for f in (2, 3, 5) if entry["shape"][i] % f == 0), 1)
        entry["shape"][i] //= factor
        entry["shape"][j] *= factor
    elif kind == 2:
        entry["storage"] = dice.choice(["dense", "mask", "gaps", "rice", "", None])
    else:
        parts.graph["weights"][first], parts.graph["weights"][second] = parts.graph["weights"][second], entry
    return parts.joined()


def names(content: bytes, dice: random.Random) -> bytes:
    """Let operations read other values and other weights that exist."""
    parts = Parts.of(content)
    ops = parts.graph["ops"]
    for _ in range(dice.randint(1, 2)):
        place = dice.randrange(len(ops))
        known = [x["name"] for x in parts.graph["inputs"]] + [o["output"] for o in ops[: place + (dice.random() < 0.1)]]
        keys = [key for key in REFERENCES if key in ops[place]]
        kind = dice.randrange(3)
        if kind == 0 and ops[place]["inputs"]:
            ops[place]["inputs"][dice.randrange(len(ops[place]["inputs"]))] = dice.choice(known)
        elif kind == 1 and keys:
            key = dice.choice(keys)
            others = known if key == "residual" else list(parts.graph["weights"])
            ops[place][key] = dice.choice([*others, None])
        else:
            parts.graph["outputs"][dice.randrange(len(parts.graph["outputs"]))] = dice.choice(known)
    return parts.joined()


def operations(content: bytes, dice: random.Random) -> bytes:
    """Leave an operation out, repeat it, exchange two, give it another kind or another activation."""
    parts = Parts.of(content)
    ops = parts.graph["ops"]
    place, other = dice.randrange(len(ops)), dice.randrange(len(ops))
    kind = dice.randrange(6)
    if kind == 0 and ops[place]["inputs"]:
        gone = ops.pop(place)
        text = json.dumps(ops).replace(json.dumps(gone["output"]), json.dumps(gone["inputs"][0]))
        parts.graph["ops"] = json.loads(text)
    elif kind == 1:
        ops.insert(place, {**ops[place], "output": "again"})
    elif kind == 2:
        ops[place], ops[other] = ops[other], ops[place]
    elif kind == 3:
        ops[place]["op"] = ops[other]["op"]
    elif kind == 4 and "activation" in ops[place]:
        ops[place]["activation"] = dice.choice(["relu", "gelu", "sigmoid", "tanh", "hardsigmoid", None])
    else:
        simple = dice.choice(["relu", "softmax", "mean", "permute", "identity"])
        fields = {"softmax": {"axis": dice.randint(-3, 3)}, "mean": {"axes": [dice.randint(0, 3)], "keepdim": True}}
        fields["permute"] = {"axes": dice.sample(range(4), 4)}
        ops[place] = {**{k: ops[place][k] for k in ("path", "output")}, "inputs": ops[place]["inputs"][:1],
                      "op": simple, **fields.get(simple, {})}  # fmt: skip
    return parts.joined()


Mutation = Callable[[bytes, random.Random], bytes]
MUTATIONS: dict[str, Mutation] = {
    f.__name__: f
    for f in (anywhere, cut, data, structure, values, header, anything, numbers, sizes, weights, names, operations)
}
