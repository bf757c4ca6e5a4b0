"""Pages: one HTML file each that needs nothing else, made from the templates of this package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softprune.reporting.svg import figure, figures
from softprune.reporting.tabular import table_html

if TYPE_CHECKING:
    from jinja2 import Environment

STYLES = ("page.css", "chart.css")
SCRIPTS = ("state.js", "charts.js", "tips.js", "tables.js", "groups.js", "page.js")
# Nothing is loaded from anywhere; a page that is served while its run goes on may ask its own server for news.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def render(template: str, /, **values: Any) -> str:
    """Fill a template that extends ``base.html``; everything is escaped.

    Args:
        template: a name in the folder ``templates``, or a path below ``softprune/reporting``.
        values: what the template needs; ``base.html`` says what it takes itself.

    Example:
        >>> page = render("base.html", title="Nothing yet")
        >>> "<title>Nothing yet</title>" in page
        True
    """
    from softprune import __version__

    shared = {"style": _joined(STYLES), "script": _joined(SCRIPTS), "policy": POLICY, "version": __version__}
    return str(_environment().get_template(template).render({**shared, "follow": 0, **values}))


def refuse_place(out: Path, *, example: str) -> None:
    """Raise for a place where no page can be written, with a name that would do."""
    if out.is_dir() or not out.parent.is_dir():
        why = "is a folder" if out.is_dir() else f"cannot be written: there is no folder {out.parent}"
        raise ValueError(f"{out} {why}; name an HTML file, such as {example}")


def _environment() -> Environment:
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined
    except ImportError as error:
        raise ImportError("pages need jinja2: pip install 'softprune[report]'") from error
    from markupsafe import Markup

    # Strict: a value that a template misses is an error here, not a hole in the page.
    made = Environment(autoescape=True, undefined=StrictUndefined, loader=FunctionLoader(_source), trim_blocks=True)
    made.filters["figure"] = lambda chart, wide=None: Markup(figure(chart, wide=wide))
    made.filters["figures"] = lambda charts: Markup(figures(charts))
    made.filters["table"] = lambda table: Markup(table_html(table))
    return made


def _source(name: str) -> str | None:
    here = resources.files("softprune.reporting")
    found = [file for file in (here / "templates" / name, here / name) if file.is_file()]
    return found[0].read_text(encoding="utf-8") if found else None


def _joined(names: tuple[str, ...]) -> Any:
    """Style sheets or scripts of the package, as they are: not templates, so their braces mean nothing."""
    from markupsafe import Markup

    return Markup("\n".join(_source(name) or "" for name in names))
