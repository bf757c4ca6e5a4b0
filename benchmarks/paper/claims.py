"""What the paper prints in two places, and sentences that follow from its own tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from benchmarks.paper.printed import Check, Printed, PublishedTable, Verdict, published_table
from benchmarks.paper.recount import size_reduction

# What stands for what in table 1: (table, method there) -> method in table 1, and the columns that must be the same.
_SAME = {
    (4, "Uniform"): ("DNW", ("top1", "params", "flops")),
    (4, "ERK"): ("RigL + ERK", ("params", "flops")),
    (4, "Budget from STR"): ("STR", ("params", "flops")),
    (5, "Uniform"): ("GMP", ("top1", "params", "flops")),
    (5, "Budget from STR"): ("STR", ("params", "flops")),
}
_QUANTITIES = {"top1": "accuracy", "params": "parameters", "flops": "FLOPs", "sparsity": "sparsity"}
# Sparsities of one model in a table of budgets and in a table of results: (table, column, table, method, sparsity).
_TOTALS = (
    (7, "str-90.23", 1, "STR", "90.23", ""),
    (7, "uniform-90", 1, "GMP", "90.00", ""),
    (7, "erk-90", 1, "RigL + ERK", "90.00", "the column of table 7 is in whole percent"),
    (7, "snfs-90", 1, "SNFS", "90.00", "table 7 has what the layers add up to, table 1 the goal"),
    (7, "gs-89.54", 9, "STR-GS", "89.54", ""),
    (8, "str-89.01", 2, "STR", "89.01", ""),
    (8, "gmp-89.03", 2, "GMP", "89.03", ""),
)
ABOUT_RESNET50, ABOUT_MOBILENET = "section 4.1.2", "section 4.1.3"
ABOUT_RNN, DISCUSSION, APPENDIX = "section 4.2.2", "section 5", "appendix A"


def check_consistency() -> list[Check]:
    """Every value that two tables share; ``ours`` is the second table's.

    Example:
        >>> [c.row for c in check_consistency() if c.verdict == "differs"]
        ['RigL + ERK 90.00 %', 'SNFS 90.00 %']
    """
    return [*_transfers(), *_totals(), *_lists()]


def _transfers() -> list[Check]:
    first, checks = published_table(1), []
    for (number, method), (other, columns) in _SAME.items():
        for record in published_table(number).records():
            if record["method"] != method:
                continue
            twin = first.find(method=other, sparsity=record["sparsity"])
            row = f"{method} {record['sparsity']} %, in table 1 {other}"
            checks += [
                _same(f"tables {number} and 1", row, _QUANTITIES[c], record[c], twin[c], reason="") for c in columns
            ]
    return checks


def _totals() -> list[Check]:
    checks = []
    for number, column, other, method, sparsity, reason in _TOTALS:
        above = published_table(number).records()[0][column]
        below = published_table(other).find(method=method, sparsity=sparsity)["sparsity"]
        place = f"tables {number} and {other}"
        checks.append(_same(place, f"{method} {sparsity} %", "sparsity", above, below, reason=reason))
    above6, above7 = (published_table(n).records()[1]["str-90.23"] for n in (6, 7))
    checks.append(_same("tables 6 and 7", "STR 90.23 %", "backbone sparsity", above6, above7, reason=""))
    return checks


def _lists() -> list[Check]:
    first, second = published_table(1), published_table(2)
    ranks = [r for r in published_table(3).records() if r["str"]]
    return [
        _listed("tables 6 and 1", "sparsities of STR", published_table(6).columns[3:], _str(first, prefix="str-")),
        _listed("tables 10 and 1", "sparsities of STR", _column(published_table(10), "sparsity"), _str(first)),
        _listed("tables 11 and 2", "sparsities of STR", _column(published_table(11), "sparsity"), _str(second)),
        _listed("tables 12 and 3", "ranks of FastGRNN", map(_ranks, published_table(12).records()), map(_ranks, ranks)),
    ]


def _str(table: PublishedTable, *, prefix: str = "") -> list[str]:
    return [prefix + r["sparsity"] for r in table.records() if r["method"] == "STR"]


def _column(table: PublishedTable, name: str) -> list[str]:
    return [r[name] for r in table.records()]


def _ranks(record: dict[str, str]) -> str:
    return f"{record['data']} {record['r_w']}, {record['r_u']}"


def _listed(place: str, quantity: str, one: Iterable[str], two: Iterable[str]) -> Check:
    # Tables 2 and 11 list the same models in the same order, but nothing depends on it.
    left, right = sorted(one), sorted(two)
    text, other = f"{len(left)} values", f"{len(right)} values"
    if left != right:
        text, other = ", ".join(sorted(set(left) - set(right))), ", ".join(sorted(set(right) - set(left)))
    return Check(place, "all rows", quantity, text, other, "agrees" if left == right else "differs", "the same models")


def _same(place: str, row: str, quantity: str, one: str, two: str, *, reason: str) -> Check:
    agrees = one == two
    return Check(place, row, quantity, one, two, "agrees" if agrees else "differs", "" if agrees else reason)


# Sentences of the paper that follow from its own tables.


def check_claims() -> list[Check]:
    """Every number in the text that can be computed from the tables as printed.

    Example:
        >>> [c.row for c in check_claims() if c.verdict == "differs"][0]
        'least gain in accuracy at 80 %'
    """
    return [*_resnet50(), *_mobilenet(), *_fastgrnn(), *_transfer(), *_adaptations()]


def _claim(
    place: str, what: str, quantity: str, says: str, value: float, *, about: float = 0.0, reason: str = ""
) -> Check:
    """``about`` is how far a value may be off where the sentence says "around" or "up to"."""
    printed = Printed(says.removesuffix(" %").removesuffix("x"))
    unit = says[len(printed.text) :]
    verdict: Verdict = "agrees" if printed.fits(value, slack=about) else "differs"
    return Check(
        place, what, quantity, says, printed.like(value) + unit, verdict, reason or "from the tables as printed"
    )


def _resnet50() -> Iterator[Check]:
    top1, flops = _reader(1, "top1"), _reader(1, "flops")
    least = "0.19 is the gain of 79.55 %; 81.27 % gains 0.12"
    gain = min(top1("STR", s) for s in ("79.55", "81.27")) - top1("DNW", "80.00")
    yield _claim(ABOUT_RESNET50, "least gain in accuracy at 80 %", "accuracy", "0.19 %", gain, reason=least)
    saved = flops("GMP", "80.00") - flops("STR", "79.55")
    yield _claim(ABOUT_RESNET50, "least saving at 80 %", "FLOPs", "60M", saved, reason="51.3M with exact FLOPs")
    share = 100 * saved / flops("GMP", "80.00")
    yield _claim(ABOUT_RESNET50, "least saving at 80 %", "share", "6.5 %", share, reason="6.3 % with exact FLOPs")
    for level, best, says, part, rows in (
        ("90.00", "GMP", "68M", "16.5 %", ("87.70", "90.23", "90.55")),
        ("95.00", "GMP", "45M", "22 %", ("94.80", "95.03", "95.15")),
        ("96.50", "RigL*", "140M", "54 %", ("96.11", "96.53")),
    ):
        base = flops(best, level)
        found = [base - flops("STR", s) for s in rows]
        reason = f"{says} ({part}) is the largest saving of the group; {rows[found.index(min(found))]} % saves least"
        what = f"least saving at {float(level):g} %"
        yield _claim(ABOUT_RESNET50, what, "FLOPs", says, min(found), reason=reason)
    for level, base, says, best in (
        ("98", top1("DNW", "98.00"), "4.6 %", "97.78"),
        ("99", top1("GMP", "99.00"), "10 %", "98.79"),
    ):
        yield _claim(ABOUT_RESNET50, f"largest gain at {level} %", "accuracy", says, top1("STR", best) - base)
    lowest = min(flops("STR", s) for s in ("98.79", "98.98", "99.10"))
    reason = "GMP has 41M: the caption claims fewer FLOPs than all others at all sparsities, the text does not"
    yield _claim("caption of table 1", "fewest FLOPs at 99 %", "FLOPs", "41M", lowest, reason=reason)


def _mobilenet() -> Iterator[Check]:
    top1, flops = _reader(2, "top1"), _reader(2, "flops")
    gmp75, gmp90 = flops("GMP", "74.11"), flops("GMP", "89.03")
    gain = top1("STR", "75.28") - top1("GMP", "74.11")
    yield _claim(ABOUT_MOBILENET, "gain at 75 %", "accuracy", "0.65 %", gain)
    saved = gmp75 - flops("STR", "75.28")
    yield _claim(ABOUT_MOBILENET, "saving at 75 %", "FLOPs", "62M", saved)
    yield _claim(ABOUT_MOBILENET, "saving at 75 %", "share", "38 %", 100 * saved / gmp75)
    saved = gmp90 - flops("STR", "89.01")
    reason = "89.62 % saves 42M, 51.2 %"
    yield _claim(ABOUT_MOBILENET, "saving at 90 %", "FLOPs", "40M", saved, reason=reason)
    yield _claim(ABOUT_MOBILENET, "saving at 90 %", "share", "50 %", 100 * saved / gmp90, about=1.0, reason=reason)
    gain = top1("STR", "85.80") - top1("GMP", "89.03")
    yield _claim("caption of table 2", "largest gain", "accuracy", "3 %", gain)
    saved = 100 * (1 - flops("STR", "85.80") / gmp90)
    yield _claim("caption of table 2", "saving of that model", "share", "33 %", saved)


def _fastgrnn() -> Iterator[Check]:
    records = published_table(3).records()
    for data, says, shown in (("google12", "1.67 %", "Google-12"), ("har2", "2.47 %", "HAR-2")):
        gains = [float(r["str"]) - float(r["vanilla"]) for r in records if r["data"] == data and r["str"]]
        yield _claim(ABOUT_RNN, f"largest gain on {shown}", "accuracy", says, max(gains))
    full = float(published_table(3).find(data="google12", r_w="32", r_u="100")["vanilla"])
    reason = "table 3 prints 92.30 for the full rank"
    yield _claim(ABOUT_RNN, "full rank on Google-12", "accuracy", "92.60 %", full, reason=reason)
    for data, says, shown in (("google12", "50 %", "Google-12"), ("har2", "70 %", "HAR-2")):
        sizes = [size_reduction(r) for r in records if r["data"] == data and r["str"]]
        text = f"{100 * min(sizes):.0f} to {100 * max(sizes):.0f} %, counting the two matrices alone"
        yield _claim(ABOUT_RNN, f"smaller on {shown}", "size", says, 100 * min(sizes), about=2.0, reason=text)


def _transfer() -> Iterator[Check]:
    top1, flops = _reader(4, "top1"), _reader(4, "flops")
    uniform = flops("Uniform", "90.00")
    yield _claim(
        DISCUSSION, "ERK with DNW at 90 %", "accuracy", "0.1 %", top1("ERK", "90.00") - top1("Uniform", "90.00")
    )
    reason = "2.42x with exact ERK"
    yield _claim(DISCUSSION, "ERK with DNW at 90 %", "FLOPs", "2.35x", flops("ERK", "90.00") / uniform, reason=reason)
    saved = uniform - flops("Budget from STR", "90.23")
    yield _claim(DISCUSSION, "STR's budget with DNW at 90 %", "FLOPs", "66M", saved)
    yield _claim(DISCUSSION, "STR's budget with DNW at 90 %", "share", "16 %", 100 * saved / uniform)
    gain = top1("Budget from STR", "94.80") - top1("Uniform", "95.00")
    yield _claim(DISCUSSION, "STR's budget with DNW at 95 %", "accuracy", "1.42 %", gain)
    saved = flops("Uniform", "95.00") - flops("Budget from STR", "94.80")
    yield _claim(DISCUSSION, "STR's budget with DNW at 95 %", "FLOPs", "22M", saved)
    yield _claim(DISCUSSION, "STR's budget with DNW at 95 %", "share", "11 %", 100 * saved / flops("Uniform", "95.00"))
    gmp = _reader(5, "top1")
    for level, sparsity, says in (("90.00", "90.23", "0.22 %"), ("98.00", "98.05", "1.57 %")):
        gain = gmp("Budget from STR", sparsity) - gmp("Uniform", level)
        yield _claim(DISCUSSION, f"STR's budget with GMP at {float(level):g} %", "accuracy", says, gain)


def _adaptations() -> Iterator[Check]:
    ratio = _reader(9, "flops")("STR-GS", "89.54") / _reader(1, "flops")("STR", "90.23")
    yield _claim(APPENDIX, "a global threshold at 90 %", "FLOPs", "2x", ratio)
    # 21 tensors with the stem for small images; see the page on counting.
    resnet18, density = 11_164_352, 1 - 0.9963
    yield _claim(APPENDIX, "ResNet18 with 99.63 % zeros", "parameters", "41K", resnet18 * density)
    yield _claim(APPENDIX, "ResNet18 with 99.63 % zeros", "ratio", "270x", 1 / density)


def _reader(number: int, column: str) -> Callable[[str, str], float]:
    """The value in ``column`` of one table, by method and sparsity."""
    table = published_table(number)
    return lambda method, sparsity: Printed(table.find(method=method, sparsity=sparsity)[column]).value
