"""Pages: self-contained HTML files made from the templates of this package, written or served."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from softprune.reporting.svg import figure, figures
from softprune.reporting.tables import table_html

if TYPE_CHECKING:
    from jinja2 import Environment

STYLES = ("page.css", "chart.css")
SCRIPTS = ("state.js", "charts.js", "tips.js", "tables.js", "groups.js", "page.js")
# Nothing is loaded from anywhere; a page that is served while its run goes on may ask its own server for news.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
HOST = "127.0.0.1"
# Names of this machine; another one in a request means that a web site has made its own name point here.
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def render(template: str | Path, /, **values: Any) -> str:
    """Fill a template, by its name in ``templates`` or its path, that extends ``base.html``; everything is escaped.

    Example:
        >>> page = render("base.html", title="Nothing yet")
        >>> "<title>Nothing yet</title>" in page
        True
    """
    from softprune import __version__

    shared = {"style": _joined(STYLES), "script": _joined(SCRIPTS), "policy": POLICY, "version": __version__}
    known = _environment()
    made = known.get_template(template) if isinstance(template, str) else known.from_string(template.read_text("utf-8"))
    return str(made.render({**shared, "follow": 0, **values}))


def refuse_place(out: Path, *, example: str) -> None:
    """Refuse a path where no page can be written."""
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
    file = resources.files("softprune.reporting") / "templates" / name
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _joined(names: tuple[str, ...]) -> Any:
    """Style sheets or scripts of the package, as they are: not templates, so their braces mean nothing."""
    from markupsafe import Markup

    return Markup("\n".join(_source(name) or "" for name in names))


class FollowServer(ThreadingHTTPServer):
    """Serves the page that ``make`` makes at every request on the loopback address; port 0 takes any that is free."""

    daemon_threads = True

    def __init__(self, make: Callable[[], str], *, port: int = 0) -> None:
        if not 0 <= port <= 65535:
            raise ValueError(f"a port is a number from 0 to 65535, got {port}")
        self._make = make
        self._turn = threading.Lock()
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise OSError(f"port {port} cannot be used ({error.strerror}); leave --port out for a free one") from error

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"

    def page(self) -> tuple[HTTPStatus, str]:
        """The page as it is now; an error page if something cannot be read."""
        with self._turn:
            try:
                return HTTPStatus.OK, self._make()
            except (ValueError, OSError) as error:
                text = f"<!DOCTYPE html><title>error</title><main id=content><p>{html.escape(str(error))}</p></main>"
                return HTTPStatus.INTERNAL_SERVER_ERROR, text


class _Handler(BaseHTTPRequestHandler):
    server: FollowServer
    server_version, sys_version = "softprune", ""

    def do_GET(self) -> None:
        if not is_loopback(self.headers.get("Host")):
            self._send(HTTPStatus.FORBIDDEN, "this page is for this machine alone\n", "text/plain")
        elif urlsplit(self.path).path != "/":
            self._send(HTTPStatus.NOT_FOUND, "there is only one page, /\n", "text/plain")
        else:
            self._send(*self.server.page(), "text/html")

    do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

    def _send(self, status: HTTPStatus, text: str, kind: str) -> None:
        body = text.encode("utf-8", errors="replace")
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", f"{POLICY}; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'"),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


def is_loopback(host: str | None) -> bool:
    """Whether the Host of a request names this machine.

    Example:
        >>> is_loopback("127.0.0.1:8000"), is_loopback("[::1]"), is_loopback("example.org"), is_loopback(None)
        (True, True, False, False)
    """
    try:
        return urlsplit(f"//{host or ''}").hostname in _LOOPBACK
    except ValueError:
        return False
