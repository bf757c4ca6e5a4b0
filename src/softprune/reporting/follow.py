"""A report that is served while its run goes on: to this machine alone, made anew for every request."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from softprune.reporting.page import POLICY

HOST = "127.0.0.1"
# Names of this machine. Another one in a request means that a web site has made its own name point here.
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class FollowServer(ThreadingHTTPServer):
    """Serves one page on the loopback address.

    Args:
        make: makes the page; called for every request, never twice at once.
        port: 0 for any that is free.

    Example:
        with FollowServer(lambda: report_page(runs, follow=5)) as server:
            server.serve_forever()
    """

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
        """The page as it is now; what cannot be read is said on a page of its own."""
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
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if not is_loopback(self.headers.get("Host")):
            self._send(HTTPStatus.FORBIDDEN, "this page is for this machine alone\n", "text/plain")
        elif urlsplit(self.path).path != "/":
            self._send(HTTPStatus.NOT_FOUND, "there is only one page, /\n", "text/plain")
        else:
            self._send(*self.server.page(), "text/html")

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
        """Requests are not worth a line each."""


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
