"""Sentences of the paper that follow from its own tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from softprune.reporting.paper.check import Check, Verdict
from softprune.reporting.paper.low_rank import size_reduction
from softprune.reporting.paper.printed import Printed
from softprune.reporting.paper.published_table import published_table

ABOUT_RESNET50, ABOUT_MOBILENET = "section 4.1.2", "section 4.1.3"
ABOUT_RNN, DISCUSSION, APPENDIX = "section 4.2.2", "section 5", "appendix A"


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
