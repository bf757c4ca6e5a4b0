"""The served page: for this machine alone, and as new as the files."""

import http.client
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from folders import write_run
from typer.testing import CliRunner

from softprune.cli.report import report
from softprune.reporting.page import FollowServer, is_loopback
from softprune.reporting.report import load, report_page


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", finished=False)


@pytest.fixture
def server(run: Path) -> Iterator[FollowServer]:
    with FollowServer(lambda: report_page(load([run])[0], follow=5)) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(
    server: FollowServer, path: str = "/", *, verb: str = "GET", host: str | None = None
) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    connection.putrequest(verb, path, skip_host=host is not None)
    if host:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    return answer, answer.read().decode()


def test_every_request_shows_the_files_as_they_are(server: FollowServer, run: Path) -> None:
    assert server.server_address[0] == "127.0.0.1"
    _, before = ask(server)
    assert "epoch 3 of 9" in before and 'data-follow="5"' in before
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "epoch": 6, "step": 27, "loss": 0.5}\n{"kind": "ep')
    _, after = ask(server)
    assert "epoch 7 of 9" in after and "in the middle of a line" in after
    (run / "result.json").write_text('{"seconds": 3}')
    _, over = ask(server)
    assert "The run is finished" in over and 'data-follow="0"' in over


def test_answers_forbid_what_a_page_does_not_need(server: FollowServer) -> None:
    answer, _ = ask(server)
    assert answer.status == 200
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "0.0.0.0", "[::", "10.0.0.1"]
)
def test_other_hosts_are_refused(server: FollowServer, host: str) -> None:
    answer, text = ask(server, host=host)
    assert answer.status == 403 and "tiny" not in text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1:80", "[::1]:99"])
def test_this_machine_has_several_names(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("path", ["/config.yaml", "/../../etc/passwd", "/%2e%2e/x"])
def test_there_is_one_page_and_no_files(server: FollowServer, path: str) -> None:
    answer, _ = ask(server, path)
    assert answer.status == 404


def test_other_verbs_are_refused_and_head_has_no_body(server: FollowServer) -> None:
    assert ask(server, verb="POST")[0].status == 501
    answer, text = ask(server, verb="HEAD")
    assert answer.status == 200 and text == ""


def test_a_run_that_disappears_is_told(server: FollowServer, run: Path) -> None:
    (run / "config.yaml").unlink()
    answer, text = ask(server)
    assert answer.status == 500 and "holds no run" in text
    assert ask(server)[0].status == 500  # and it goes on answering


def test_a_port_that_is_taken_is_named(server: FollowServer) -> None:
    port = server.server_address[1]
    with pytest.raises(OSError, match=f"port {port} cannot be used"):
        FollowServer(str, port=port)
    with pytest.raises(ValueError, match="from 0 to 65535, got 70000"):
        FollowServer(str, port=70000)


def command(*arguments: str) -> object:
    app = typer.Typer()
    app.command()(report)
    return CliRunner().invoke(app, list(arguments))


def test_the_command_writes_the_page(run: Path, tmp_path: Path) -> None:
    done = command(str(run), "-o", str(tmp_path / "r.html"), "--against", "uniform")
    assert done.exit_code == 0, done.output
    assert "uniform (90.00 %)" in (tmp_path / "r.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "80"], "--port 80 is for --follow"),
        (["--follow", "-o", "x.html"], "--follow writes no files"),
        (["--follow", "--against", "nothing"], "neither a .json or .csv file"),
    ],
)
def test_arguments_that_cannot_work_are_refused(run: Path, arguments: list[str], words: str) -> None:
    done = command(str(run), *arguments)
    assert isinstance(done.exception, ValueError) and words in str(done.exception)
