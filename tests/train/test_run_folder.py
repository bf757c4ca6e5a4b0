"""The run folder: what a killed process leaves behind is cleared away, and nothing else."""

from torch import nn

from softprune import GMP, Budget, Sparsity, Units, constant, sparsify
from softprune.cli.terminal import left_words
from softprune.nn import LowRankLinear
from softprune.train.run_folder import RunFolder


def test_half_written_files_are_cleared_and_whole_ones_stay(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    whole = [tmp_path / "config.yaml", tmp_path / ".lock", checkpoints / "step-000000005.safetensors"]
    # Ours, and the scratch file of safetensors.
    halves = [tmp_path / ".budget.json.x1.part", checkpoints / ".best.safetensors.y2.part", checkpoints / ".tmpxratBz"]
    for file in (*whole, *halves):
        file.touch()
    RunFolder(tmp_path).remove_parts()
    assert sorted(file for file in tmp_path.rglob("*") if file.is_file()) == sorted(whole)


def test_a_start_after_one_that_was_killed_in_its_first_files_leaves_none_of_its_parts(tmp_path):
    for name in (".metrics.jsonl.4711.part", ".config.yaml.4711.part", ".notes.4711.part"):
        (tmp_path / name).write_text("x")
    RunFolder.create(tmp_path, "version: 1\n", seed=0, world=1)
    left = {path.name for path in tmp_path.glob(".*.part")}
    assert left == {".notes.4711.part"}  # not ours: --out may be a folder with other things in it


def test_the_folder_records_what_is_counted(tmp_path):
    model = nn.Sequential(LowRankLinear(8, 8, learned=True), nn.Linear(8, 2))
    sparsifier = sparsify(model, GMP(), goal=Sparsity(0.75), units=Units.rank, schedule=constant())
    RunFolder(tmp_path).write_budget(sparsifier.measure())
    budget = Budget.load(tmp_path)
    assert (budget.units, budget.params, budget.stored) == ("rank", 2, 2 * 16 + 8 + 18)
    assert left_words(budget) == "2 directions left; 58 parameters to store"
