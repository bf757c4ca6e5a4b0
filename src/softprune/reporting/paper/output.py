"""The files of an edition."""

from __future__ import annotations

from pathlib import Path

from softprune.budget.files import write_text
from softprune.reporting.paper.edition import Edition
from softprune.reporting.paper.sheet import save_sheets


def write_edition(
    edition: Edition, *, out: Path | None = None, figures: Path | None = None, tables: Path | None = None
) -> list[Path]:
    """Write what is asked for.

    Args:
        edition: figures, tables and checks.
        out: a file for the page.
        figures: a folder for SVG and PNG, made if it is missing.
        tables: a folder for CSV and Markdown, made if it is missing.

    Returns:
        The page, and the two folders, as far as they were asked for.

    Raises:
        ValueError: before anything is written, if a place cannot be written to.
        ImportError: without jinja2 for the page or matplotlib for the figures.
    """
    _require(out, figures, tables)
    # A package that is missing is noticed before the first file is written: the page is made, then figures are drawn.
    page = "" if out is None else _page(edition)
    if figures is not None:
        from softprune.reporting.plot import save_figures

        save_figures(edition.all_charts(), figures)
    if out is not None:
        write_text(out, page)
    if tables is not None:
        save_sheets(edition.all_sheets(), tables)
    return [path for path in (out, figures, tables) if path is not None]


def _page(edition: Edition) -> str:
    from softprune.reporting.paper.paper_page import paper_page

    return paper_page(edition)


def _require(out: Path | None, figures: Path | None, tables: Path | None) -> None:
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        what = "is a folder" if out.is_dir() else f"lies in {out.parent}, which is no folder"
        raise ValueError(f"{out} {what}: name a file such as paper.html in a folder that exists")
    for folder in (figures, tables):
        if folder is not None and folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file: name a folder, which is made if it is missing")
