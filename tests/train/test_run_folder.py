"""The run folder: what a killed process leaves behind is cleared away, and nothing else."""

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
