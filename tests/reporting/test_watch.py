"""Watching a run: files that grow, appear later, are cut off or replaced; one picture, and a live view that ends."""

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from softprune.cli import app
from softprune.cli.report import follow, frame, plain, sparkline
from softprune.reporting.live_run import Tail, WatchedRun

CONFIG = """
epochs: 10
model: {name: small_cnn}
data: {name: fashion-mnist}
method: {name: str}
goal: {sparsity: 0.98, scope: managed}
"""
HEADER = "epoch,step,name,s,alpha,density,P,l1_active,balance,macs\n"


def step(number: int, epoch: int, loss: float) -> str:
    row = {"kind": "step", "epoch": epoch, "step": number, "loss": loss, "lr": 0.1, "seconds": number / 10}
    return json.dumps(row) + "\n"


def epoch(number: int, at_step: int, accuracy: float, sparsity: float) -> str:
    row = {"kind": "epoch", "epoch": number, "step": at_step, "accuracy": accuracy, "sparsity": sparsity}
    return json.dumps({**row, "macs": 330554, "seconds": at_step / 10}) + "\n"


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def picture(run: WatchedRun, lines: int | None = None) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(frame(run, lines=lines))
    return console.file.getvalue()


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "run-a"
    made.mkdir()
    (made / "config.yaml").write_text(CONFIG)
    (made / "metrics.jsonl").write_text("")
    (made / "layers.csv").write_text(HEADER)
    return made


def test_a_tail_reads_only_what_is_new_and_only_whole_lines(tmp_path):
    file = tmp_path / "lines"
    tail = Tail(file)
    assert tail.read() == ([], False)
    file.write_bytes(b"one\ntw")
    assert tail.read() == (["one"], False)
    assert tail.read() == ([], False)
    append(file, "o\nthree\n")
    assert tail.read() == (["two", "three"], False)


def test_a_tail_begins_anew_with_a_file_that_was_replaced_or_cut(tmp_path):
    file = tmp_path / "lines"
    file.write_text("one\ntwo\nthr")
    tail = Tail(file)
    tail.read()
    file.write_text("one\n")
    assert tail.read() == (["one"], True)
    other = tmp_path / "other"
    other.write_text("a much longer line than before\n")
    other.replace(file)
    assert tail.read() == (["a much longer line than before"], True)


def test_a_tail_of_bytes_that_are_no_text_goes_on(tmp_path):
    (tmp_path / "lines").write_bytes(b"\xff\xfe\nnext\n")
    assert Tail(tmp_path / "lines").read()[0] == ["\ufffd\ufffd", "next"]


def test_a_long_file_is_read_to_its_end_in_parts(folder, monkeypatch):
    monkeypatch.setattr("softprune.reporting.live_run.MOST_BYTES", 64)
    append(folder / "metrics.jsonl", "".join(step(n, 0, 1.0 / n) for n in range(1, 101)))
    run = WatchedRun(folder)
    run.look()
    assert (run.step, len(run.losses)) == (100, 100)


def test_progress_is_known_before_the_first_evaluation(folder):
    run = WatchedRun(folder)
    append(folder / "metrics.jsonl", step(50, 0, 1.0))
    run.look()
    assert run.total_steps is None  # an epoch may have any number of steps
    append(folder / "metrics.jsonl", step(100, 1, 0.9) + step(150, 1, 0.8) + step(200, 2, 0.7))
    run.look()
    # Epochs of 79 steps: step 150 in the second says 75 at least, step 100 in the second and 200 in the third < 100.
    assert 750 <= run.total_steps <= 1000
    append(folder / "metrics.jsonl", epoch(2, 237, 0.8, 0.5))
    run.look()
    assert run.total_steps == 790
    assert run.seconds_left == pytest.approx((790 - 237) / 10)


def test_one_look_reads_what_the_next_one_adds_to(folder):
    run = WatchedRun(folder)
    append(folder / "metrics.jsonl", step(50, 0, 2.0) + step(100, 1, 1.5)[:20])
    run.look()
    assert (run.step, list(run.losses)) == (50, [2.0])
    append(folder / "metrics.jsonl", step(100, 1, 1.5)[20:] + "no json\n[1]\n" + epoch(1, 158, 0.71, 0.25))
    append(folder / "layers.csv", "1,158,0.weight,-1,0.1,0.75,nan,3.0,nan,83104\n1,158,4.wei")
    run.look()
    assert list(run.losses) == [2.0, 1.5]
    assert (list(run.accuracies), list(run.sparsities)) == ([0.71], [0.25])
    assert list(run.layers) == ["0.weight"]
    text = picture(run)
    for words in ("run-a", "str goal", "epoch 2 of 10", "step 158 of 790", "71.00%", "25.00%", "of 98.00%", "330,554"):
        assert words in text
    assert "83,104" in text and "75.00%" in text


def test_a_run_that_goes_on_from_a_checkpoint_forgets_what_came_after(folder):
    append(folder / "metrics.jsonl", step(50, 0, 2.0) + step(100, 1, 1.5))
    run = WatchedRun(folder)
    run.look()
    part = folder / "part"
    part.write_text(step(50, 0, 2.0))
    part.replace(folder / "metrics.jsonl")
    run.look()
    assert (run.step, list(run.losses)) == (50, [2.0])


def test_files_may_appear_later(tmp_path):
    run = WatchedRun(tmp_path)
    run.look()
    assert "waiting for config.yaml" in picture(run)
    (tmp_path / "config.yaml").write_text(CONFIG)
    run.look()
    assert "waiting for metrics.jsonl" in picture(run)
    (tmp_path / "metrics.jsonl").write_text(step(50, 0, 2.0))
    run.look()
    assert "step 50" in picture(run)


def test_lines_that_no_run_writes_are_passed_over(folder):
    (folder / "config.yaml").write_text(CONFIG.replace("epochs: 10", "epochs: 1.0e+300"))
    append(folder / "metrics.jsonl", step(50, -1, 9.0) + step(-50, 0, 9.0) + step(100, 1, 2.0))
    long = "x" * 200_000
    append(folder / "layers.csv", f"0,50,{long},,,0.5,,,,\n0,50,fc,,,0.25,,,,\n")
    run = WatchedRun(folder)
    run.look()
    assert (run.step, list(run.losses), run.total_steps) == (100, [2.0], None)
    assert list(run.layers) == ["fc"]
    (folder / "config.yaml").write_text("epochs: !!timestamp soon")
    WatchedRun(folder).look()


def test_a_long_table_is_thinned_to_the_terminal(folder):
    rows = "".join(f"0,1,layer{n}.weight,-1,0.1,0.5,nan,1.0,nan,10\n" for n in range(500))
    append(folder / "layers.csv", rows)
    run = WatchedRun(folder)
    run.look()
    text = picture(run, lines=40)
    assert len(text.splitlines()) <= 40
    assert "layer0.weight" in text and "layer499.weight" in text and "of 500 tensors" in text
    assert len(picture(run).splitlines()) > 500


def test_names_cannot_steer_the_terminal(folder):
    append(folder / "layers.csv", "0,1,\x1b[2J[red]x[/red],-1,0.1,nan,nan,1.0,nan,nan\n")
    run = WatchedRun(folder)
    run.look()
    text = picture(run)
    assert "\x1b" not in text
    assert "\ufffd[2J[red]x[/red]" in text
    assert plain("a\nb") == "a\ufffdb"


def test_sparklines():
    assert sparkline([0, 1, 2, 3]) == "▁▃▆█"
    assert sparkline([1.0]) == sparkline([]) == ""
    assert sparkline(range(1000), 8) == "▁▂▃▄▅▆▇█"


def test_the_live_view_follows_a_growing_run_to_its_end(folder):
    screen = Console(file=io.StringIO(), force_terminal=True, width=120, height=40)
    news = [
        lambda: append(folder / "metrics.jsonl", step(50, 0, 2.0)),
        lambda: append(folder / "metrics.jsonl", epoch(0, 79, 0.6, 0.1)),
        lambda: append(folder / "layers.csv", "0,79,0.weight,-1,0.1,0.75,nan,3.0,nan,83104\n"),
        lambda: (folder / "result.json").write_text('{"last": {'),  # written as a whole by a run, but no matter
        lambda: (folder / "result.json").write_text('{"version": 1, "seconds": 61}'),
    ]
    waits = iter(news)
    follow(folder, screen, wait=lambda: next(waits)())
    text = screen.file.getvalue()
    assert next(waits, None) is None  # it went on to the end, and no further
    for words in ("step 50", "60.00%", "0.weight", "finished after 0:01:01"):
        assert words in text


def test_the_live_view_ends_with_ctrl_c(folder):
    screen = Console(file=io.StringIO(), force_terminal=True, width=120, height=40)

    def interrupt() -> None:
        raise KeyboardInterrupt

    follow(folder, screen, wait=interrupt)
    assert "run-a" in screen.file.getvalue()
    assert "\x1b[?25h" in screen.file.getvalue()  # the cursor is back


def test_the_command_prints_one_picture_where_there_is_no_terminal(folder):
    append(folder / "metrics.jsonl", epoch(0, 79, 0.6, 0.1))
    for words in (["watch", str(folder)], ["watch", str(folder), "--once"]):
        result = CliRunner().invoke(app, words, env={"COLUMNS": "120"})
        assert result.exit_code == 0, result.output
        assert "60.00%" in result.output


def test_what_is_no_run_is_refused_with_the_way_out(folder, tmp_path):
    with pytest.raises(ValueError, match="is not a folder"):
        follow(tmp_path / "absent", Console(file=io.StringIO()))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no run yet"):
        follow(tmp_path / "empty", Console(file=io.StringIO()), once=True)
    shutil.copytree(folder, tmp_path / "run-b")
    with pytest.raises(ValueError, match="holds 2 runs; name one of them"):
        follow(tmp_path, Console(file=io.StringIO()))
