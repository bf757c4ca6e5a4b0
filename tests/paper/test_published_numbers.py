"""The packaged numbers are the printed ones: compared with the tables that were copied from the paper by hand."""

import csv
import os
import re
from pathlib import Path

import pytest
from benchmarks.paper.printed import published_table


def original(name):
    """A file of the folder of originals; the test is skipped where that folder is absent."""
    beside = Path(__file__).resolve().parents[2].parent / "shared"
    path = Path(os.environ.get("SOFTPRUNE_SHARED", beside)) / "paper" / name
    if not path.exists():
        pytest.skip(f"{path} is absent: the originals are not part of the repository (set SOFTPRUNE_SHARED)")
    return path


def rows_of(name):
    with original(name).open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


# number: file, the columns of ours in its columns
WHOLE = {
    1: "resnet50_results.csv",
    2: "mobilenetv1_results.csv",
    4: "resnet50_dnw_budget_transfer.csv",
    5: "resnet50_gmp_budget_transfer.csv",
    9: "resnet50_global_sparsity.csv",
    10: "resnet50_hyperparameters.csv",
    11: "mobilenetv1_hyperparameters.csv",
}


@pytest.mark.parametrize("number", WHOLE)
def test_results_and_hyperparameters(number):
    header, *rows = rows_of(WHOLE[number])
    table = published_table(number)
    assert list(table.columns) == header
    # The sign ~ of two values of table 1 stands in the paper and not in the copy.
    assert [[cell.lstrip("~") for cell in row] for row in table.rows] == rows


def test_fastgrnn():
    header, *rows = rows_of("fastgrnn_results.csv")
    assert header == ["dataset", "r_w", "r_u", "vanilla_accuracy", "str_accuracy", "weight_decay"]
    assert [list(row) for row in published_table(3).rows] == [row[:5] for row in rows]
    assert [list(row) for row in published_table(12).rows] == [[*row[:3], row[5]] for row in rows if row[5]]


@pytest.mark.parametrize(
    ("number", "file"),
    [
        (6, "resnet50_str_budgets.csv"),
        (7, "resnet50_90_budgets_by_method.csv"),
        (8, "mobilenetv1_90_budgets_by_method.csv"),
    ],
)
def test_totals_above_the_budgets(number, file):
    header, overall, backbone, *layers = rows_of(file)
    table = published_table(number)
    assert [row[1:] for row in table.rows] == [tuple(overall[1:]), tuple(backbone[1:])]
    assert len(table.columns) == len(header) and len(layers) == (29 if number == 8 else 55)


def test_every_result_is_a_row_of_the_source_text():
    text = original("paper.tex").read_text(encoding="utf-8")
    # What remains of a row without LaTeX: bold, italics, braces, signs for footnotes.
    plain = re.sub(r"\\(textbf|textit|alg|sim)|[{}$^\\\s]|midrule|bottomrule", "", text)
    missing = []
    for number in (1, 2, 4, 5, 9):
        for row in published_table(number).rows:
            method, *cells = row
            method = "" if method.startswith(("STR", "Budget")) else method.replace(" ", "")
            if "&".join([method, *(cell.lstrip("~") for cell in cells)]) not in plain.replace("\\", ""):
                missing.append((number, row))
    assert missing == []


def test_a_table_that_is_not_there():
    with pytest.raises(ValueError, match="tables 1 to 12, there is no table 13"):
        published_table(13)
    with pytest.raises(KeyError, match="16 rows of table 1"):
        published_table(1).find(method="STR")
    assert published_table(1).find(method="STR", sparsity="81.27")["params"] == "4.47M"
