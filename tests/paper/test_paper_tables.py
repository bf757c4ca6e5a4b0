"""Tables as CSV and Markdown."""

import csv

from benchmarks.paper.report import contents, paper_report, write_paper_report
from benchmarks.paper.tables import text_table, to_csv, to_markdown


def test_all_tables_are_written(tmp_path):
    report = paper_report()
    assert write_paper_report(report, tables=tmp_path / "tables") == [tmp_path / "tables"]
    files = sorted(path.name for path in (tmp_path / "tables").iterdir())
    assert len(files) == 2 * (12 + 2)
    with (tmp_path / "tables" / "table_01_resnet50_results.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 42
    assert rows[11][:8] == ["STR", "76.12", "4.47M", "4.776M", "81.27", "", "705M", "705.4M"]
    text = (tmp_path / "tables" / "table_06_resnet50_str_budgets.md").read_text()
    assert text.startswith("# Table 6. ")
    assert "| overall sparsity, ours |  |  | 79.546 |" in text
    assert len((tmp_path / "tables" / "disagreements.csv").read_text().splitlines()) == 26


def test_tables_are_rectangular_and_in_order():
    report = paper_report()
    assert [table.caption.split(".")[0] for table in report.tables] == [f"Table {n}" for n in range(1, 13)]
    for table in report.all_tables():
        assert table.rows and {len(row) for row in table.rows} == {len(table.columns)}
        assert table.note and len(table.groups) in (0, len(table.rows))
    assert [name for name, *_ in contents(report)][:22] == [f"figure {n}" for n in range(1, 11)] + [
        f"table {n}" for n in range(1, 13)
    ]


def test_totals_of_layers():
    rows = {row[0]: row for row in paper_report().tables[7].rows}
    # 462,776 and 461,862 weights, 41.75M and 82.33M multiply-adds: tests/golden.
    assert rows["weights left, ours"][3:] == ("462776", "461862")
    assert [round(int(cell) / 1e6, 2) for cell in rows["FLOPs left, ours"][3:]] == [41.75, 82.33]
    assert rows["overall sparsity, ours"][3:] == ("89.005", "89.027")


def test_what_markdown_would_read_is_escaped():
    table = text_table("a", "A", "", ("x",), [("RigL* | <b>",)])
    assert r"| RigL\* \| &lt;b> |" in to_markdown(table)
    assert to_csv(table) == "x\nRigL* | <b>\n"
