"""Ways to spoil files: bytes of anything, values of JSON, lines of YAML, cells of CSV, members of zips, headers."""

from __future__ import annotations

import copy
import csv
import io
import json
import pickletools
import random
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

NUMBERS = (-1, 0, 1, 2, 7, 255, 65536, 1 << 31, (1 << 63) - 1, 1 << 64, 10**400, -(1 << 70), 0.5, -0.0, 1e308, 5e-324)
OTHERS = (float("nan"), float("inf"), -float("inf"), None, True, False, "", "x", "1e5", [], [1, 1], [0, -1], {}, [[]])
KEYS = ("", "x", "0", "version", "__class__", "name", "\u2028", "a.b")
CELLS = ("", "-1", "nan", "inf", "1e999", "0x10", "1_0", "\u0663", "²", '"', "a,b", "\0", "9" * 5000, "-0", "1" * 40)
TOKENS = (b"\0", b"\xff\xfe", b"NaN", b"1e999", b"-1", b'"', b"{", b"]", b"\r", b"\n\n", b"\xe2\x80\xa8", b"null")
YAML_VALUES = (
    *(".nan", ".inf", "-1", "0", "1e999", "~", "{}", "[]", "''", "true", "no", "0x10", "0o7", "1_000", "2024-01-01"),
    *("&a [*a]", "*nowhere", "!!python/object/apply:os.system [x]", "!!binary aGk=", "!!set {a}", "? [a]", "|", ">"),
    *("{a: 1, a: 2}", "[1, 2, 3]", "'x'", '"\\', "!!float x", "!!int x", "!!timestamp x", "{<<: 1}", "{[a]: 1}"),
    *("=", "!!merge x", "!!null x", "9" * 5000, "@", "`", "%", "\t", "!<x> y", "!!omap [1]", "!!pairs [1]"),
)
PICKLE_CODES = bytes(ord(code.code) for code in pickletools.opcodes)
NESTING = (20, 500, 5000, 100_000)

Mutation = Callable[[bytes, random.Random], bytes]


def anywhere(content: bytes, dice: random.Random) -> bytes:
    """Change, insert, remove or repeat some bytes."""
    changed = bytearray(content or b"\0")
    for _ in range(dice.choice((1, 1, 1, 2, 3, 8))):
        place, count = dice.randrange(len(changed) + 1), dice.choice((1, 1, 2, 4, 9, 60))
        kind = dice.randrange(7)
        if kind == 0 and place < len(changed):
            changed[place] = dice.randrange(256)
        elif kind == 1 and place < len(changed):
            changed[place] ^= 1 << dice.randrange(8)
        elif kind == 2:
            del changed[place : place + count]
        elif kind == 3:
            changed[place:place] = dice.randbytes(count)
        elif kind == 4:
            changed[place:place] = changed[place : place + count] * dice.choice((1, 1, 2, 30))
        elif kind == 5:
            changed[place:place] = dice.choice(TOKENS)
        else:
            other = dice.randrange(len(changed) + 1)
            changed[place : place + count] = changed[other : other + count]
    return bytes(changed)


def cut(content: bytes, dice: random.Random) -> bytes:
    """Cut the file short, double it, or add to its end."""
    kind = dice.randrange(4)
    if kind == 0:
        return content + content
    if kind == 1:
        return content + dice.randbytes(dice.randint(1, 99))
    return content[: dice.randrange(len(content) + 1)] if kind == 2 else content[dice.randrange(len(content) + 1) :]


def spliced(content: bytes, other: bytes, dice: random.Random) -> bytes:
    """The beginning of one file and the end of another."""
    return content[: dice.randrange(len(content) + 1)] + other[dice.randrange(len(other) + 1) :]


def _change(document: Any, dice: random.Random) -> Any:
    """A document with one value changed, one key lost, renamed or new, or two values exchanged."""
    node = document
    while isinstance(node, dict | list) and node:
        keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = dice.choice(keys)
        child = node[key]
        if isinstance(child, dict | list) and child and dice.random() < 0.8:
            node = child
            continue
        kind = dice.randrange(10)
        if kind == 0:
            del node[key]
        elif kind == 1 and isinstance(node, dict):
            node[dice.choice(KEYS)] = node.pop(key)
        elif kind == 2:
            other = dice.choice(keys)
            node[key], node[other] = node[other], copy.deepcopy(child)
        elif kind == 3 and isinstance(child, int | float) and not isinstance(child, bool) and abs(child) < 1e300:
            node[key] = dice.choice((-child, child + 1, child * 1000, str(child), [child], float(child), child - 0.5))
        elif kind == 4 and isinstance(child, str):
            node[key] = dice.choice((child * 2000, child[:-1], child.upper(), child + "\0", {child: child}, "\ud800"))
        elif kind == 5 and isinstance(node, list):
            node += copy.deepcopy(node) * dice.choice((1, 300))
        else:
            # A copy: the next change may walk into it.
            value = nested(dice) if dice.random() < 0.02 else dice.choice(NUMBERS if kind % 2 else OTHERS)
            node[key] = copy.deepcopy(value)
        return document
    return dice.choice((None, 7, "text", [document], {"x": document}))


def nested(dice: random.Random) -> Any:
    """A list in a list in a list; as deep as what writes JSON can follow."""
    found: Any = []
    for _ in range(dice.choice((10, 100, 400))):
        found = [found] if dice.random() < 0.5 else {"a": found}
    return found


def json_values(content: bytes, dice: random.Random) -> bytes:
    """Another value somewhere in a JSON file; sometimes nesting deeper than any stack, or a key twice."""
    document = json.loads(content)
    for _ in range(dice.choice((1, 1, 2))):
        document = _change(document, dice)
    text = json.dumps(document)
    kind = dice.randrange(40)
    if kind == 0:
        depth = dice.choice(NESTING)
        place = text.find(":") + 1
        return (text[:place] + "[" * depth + "]" * depth * dice.randrange(2) + text[place:]).encode()
    if kind == 1 and text.startswith("{") and ":" in text:
        return (text[:-1] + ", " + text[1:]).encode()
    return text.encode()


def json_lines(content: bytes, dice: random.Random) -> bytes:
    """A JSON file of lines with one of them changed, doubled, lost or moved."""
    lines = content.splitlines(keepends=True)
    place, other = dice.randrange(len(lines)), dice.randrange(len(lines))
    kind = dice.randrange(8)
    if kind == 0:
        del lines[place]
    elif kind == 1:
        lines.insert(other, lines[place])
    elif kind == 2:
        lines[place], lines[other] = lines[other], lines[place]
    else:
        lines[place] = json_values(lines[place], dice) + b"\n"
    return b"".join(lines)


def yaml_lines(content: bytes, dice: random.Random) -> bytes:
    """A YAML file with lines doubled, lost, moved, indented, or with another value behind the colon."""
    lines = content.decode().splitlines()
    for _ in range(dice.choice((1, 1, 2))):
        place, other = dice.randrange(len(lines)), dice.randrange(len(lines))
        kind = dice.randrange(9)
        if kind == 0 and len(lines) > 1:
            del lines[place]
        elif kind == 1:
            lines.insert(other, lines[place])
        elif kind == 2:
            lines[place] = "  " + lines[place]
        elif kind == 3 and dice.random() < 0.05:
            lines.append(_expanding(dice))
        else:
            lines[place] = lines[place].partition(":")[0] + ": " + dice.choice(YAML_VALUES)
        if dice.random() < 0.01:
            lines[0] = lines[0].partition(":")[0] + ": " + "[" * dice.choice(NESTING)
    return "\n".join(lines).encode()


def _expanding(dice: random.Random) -> str:
    """Aliases of aliases: a few lines that stand for more values than any memory holds."""
    depth, key = dice.choice((2, 5, 12, 40)), dice.choice(("changes", "search", "model", "x", "rules", "skip"))
    rows = ["&a0 [1, 1]"] + [f"&a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, depth)]
    return f"{key}: {{" + ", ".join(f"k{n}: {row}" for n, row in enumerate(rows)) + "}"


def yaml_values(content: bytes, dice: random.Random) -> bytes:
    """Another value somewhere in a YAML file, written as JSON, which is YAML too."""
    import yaml

    return json.dumps(_change(yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)), dice)).encode()


def csv_cells(content: bytes, dice: random.Random) -> bytes:
    """Other cells, rows that are longer or shorter, doubled, moved or lost, columns exchanged."""
    rows = list(csv.reader(io.StringIO(content.decode())))
    place, other = dice.randrange(len(rows)), dice.randrange(len(rows))
    kind = dice.randrange(10)
    if kind == 0:
        del rows[place]
    elif kind == 1:
        rows.insert(other, rows[place])
    elif kind == 2:
        rows[place] = rows[place][:-1] if dice.random() < 0.5 else [*rows[place], "x"]
    elif kind == 3:
        first, second = (dice.randrange(len(rows[0])) for _ in range(2))
        for row in rows:
            if max(first, second) < len(row):
                row[first], row[second] = row[second], row[first]
    elif rows[place]:
        cell = dice.choice(CELLS) if dice.random() < 0.97 else "y" * 140_000
        rows[place][dice.randrange(len(rows[place]))] = cell
    text = io.StringIO()
    csv.writer(text, lineterminator=dice.choice(("\n", "\n", "\r\n"))).writerows(rows)
    return text.getvalue().encode()


def zip_members(content: bytes, dice: random.Random) -> bytes:
    """A zip whose member was changed before it was packed, so that its sum is right; or is lost, doubled, renamed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [[info.filename, archive.read(info), info.compress_type] for info in archive.infolist()]
    place = dice.randrange(len(members))
    kind = dice.randrange(8)
    if kind == 0:
        del members[place]
    elif kind == 1:
        members[place][0] = dice.choice((members[place][0] + "x", "../x", "/x", "", members[0][0], "x\\y"))
    else:
        change = dice.choice((anywhere, anywhere, cut))
        members[place][1] = change(members[place][1], dice)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data, method in members:
            archive.writestr(zipfile.ZipInfo(name), data, compress_type=method)
    return made.getvalue()


def safetensors_header(content: bytes, dice: random.Random) -> bytes:
    """Another header over the same bytes: entries, metadata, or the JSON inside the metadata."""
    length = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    names = [name for name in header if name != "__metadata__"]
    kind, metadata = dice.randrange(8), header.get("__metadata__", {})
    texts = [key for key, value in metadata.items() if value[:1] in "[{"]
    if kind < 3 and texts:
        key = dice.choice(texts)
        metadata[key] = json_values(metadata[key].encode(), dice).decode()
    elif kind == 3 and names:
        first, second = dice.choice(names), dice.choice(names)
        header[first], header[second] = header[second], header[first]
    elif kind == 4 and names:
        header[dice.choice(names)]["dtype"] = dice.choice(("I32", "F16", "BF16", "U8", "BOOL", "F64", "F8_E4M3", 7))
    elif kind == 5 and names:
        entry = header[dice.choice(names)]
        entry["shape"] = dice.choice((entry["shape"][::-1], [*entry["shape"], 1], [1 << 62, 4], [], [0], [-1]))
    elif kind == 6 and body:
        body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
    else:
        header = _change(header, dice)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(body)


def pickle_codes(content: bytes, dice: random.Random) -> bytes:
    """Other operations of a pickle, near its ends: the middle of one that holds arrays is their values."""
    changed = bytearray(content)
    for _ in range(dice.choice((1, 1, 2, 4))):
        place = dice.randrange(min(200, len(changed)))
        place = place if dice.random() < 0.6 else len(changed) - 1 - place
        kind = dice.randrange(3)
        if kind == 0:
            changed[place] = dice.choice(PICKLE_CODES)
        elif kind == 1:
            changed[place:place] = bytes((dice.choice(PICKLE_CODES), dice.randrange(256)))
        else:
            changed[place : place + 4] = dice.choice((b"\xff\xff\xff\x7f", b"\0\0\0\0", b"\xff" * 4, b"\0\0\0\x40"))
    return bytes(changed)


BY_KIND: dict[str, Sequence[Mutation]] = {
    "bytes": (anywhere, anywhere, anywhere, cut),
    "json": (json_values, json_values, json_values, anywhere, cut),
    "object": (json_values,),
    "pickle": (pickle_codes, pickle_codes, anywhere, cut),
    "jsonl": (json_lines, json_lines, anywhere, cut),
    "yaml": (yaml_lines, yaml_lines, yaml_values, anywhere, cut),
    "csv": (csv_cells, csv_cells, anywhere, cut),
    "zip": (zip_members, zip_members, anywhere, cut),
    "safetensors": (safetensors_header, safetensors_header, safetensors_header, anywhere, cut),
}
