"""The paper made again, as one page."""

from __future__ import annotations

from softprune.reporting.page import render
from softprune.reporting.paper.contents import contents
from softprune.reporting.paper.edition import PAPER, VERDICTS, Edition
from softprune.reporting.paper.sheet import Sheet
from softprune.reporting.tabular import Column, Table

TEMPLATE = "paper/templates/paper.html"
# Columns of words; all others hold numbers and stand to the right.
_WORDS = {"method", "verdict", "note", "reason", "where", "which", "what", "layer", "data", "recipe", "run", "network"}
_WORDS |= {"goal", "state", "made how", "shows", "result"}
# A section each: anchor, name in the navigation.
SECTIONS = [("summary", "Summary"), ("differs", "What differs"), ("figures", "Figures"), ("tables", "Tables")]


def paper_page(edition: Edition) -> str:
    """The page as HTML, complete in itself.

    Example:
        >>> from softprune.reporting.paper.edition import paper_edition
        >>> "Figure 7" in paper_page(paper_edition())
        True
    """
    sheets = {sheet.name: sheet for sheet in edition.all_sheets()}
    lines = Sheet(
        "contents", "Figures and tables of the paper", "", ("", "shows", "made how", "result"), tuple(contents(edition))
    )
    return render(
        TEMPLATE,
        title="The paper, made again",
        subtitle=PAPER,
        sections=[*SECTIONS, *([("ours", "Our runs")] if edition.ours else []), ("checks-all", "All checks")],
        counts=edition.counts(),
        verdicts=VERDICTS,
        contents=as_table(lines),
        charts=edition.charts,
        sheets=[(sheet, as_table(sheet)) for sheet in edition.sheets],
        differing=(sheets["disagreements"], as_table(sheets["disagreements"])),
        checks=(sheets["checks"], as_table(sheets["checks"])),
        ours=edition.ours,
        ours_sheets=[(sheet, as_table(sheet)) for sheet in (edition.ours.sheets if edition.ours else ())],
    )


def as_table(sheet: Sheet) -> Table:
    """A sheet for the page; rows are grouped by their verdict, if they have one."""
    columns = tuple(
        Column(name.strip(), "text" if name.strip() in _WORDS or not name else "number") for name in sheet.columns
    )
    groups: tuple[str, ...] = ()
    if "verdict" in sheet.columns:
        place = sheet.columns.index("verdict")
        groups = tuple(row[place] for row in sheet.rows)
    return Table(sheet.name, sheet.title, columns, sheet.rows, groups)
