"""`beam-trt model tiny` and the function behind it: an ordinary HF folder, or a clear refusal."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from beam_trt.assets import beam_tiny, calibration_texts, held_out_dialogues, held_out_texts
from beam_trt.cli.model import model
from beam_trt.errors import OutputError


def test_writes_every_file_and_says_their_sizes(tmp_path: Path) -> None:
    written = beam_tiny.write(tmp_path / "deep" / "tiny")
    folder = Path(written["path"])
    assert {p.name: p.stat().st_size for p in folder.iterdir()} == written["files"]
    assert set(written["files"]) == set(beam_tiny.FILES)
    assert written["num_bytes"] == sum(written["files"].values()) <= 12_000_000
    assert [p.name for p in folder.parent.iterdir()] == ["tiny"]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    out_dir = tmp_path / "empty"
    out_dir.mkdir()
    beam_tiny.write(out_dir)
    assert (out_dir / "config.json").is_file()


def test_a_folder_that_holds_something_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"found 1 entries \(mine\.txt"):
        beam_tiny.write(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "tiny"
    target.write_text("")
    with pytest.raises(OutputError, match="found a file"):
        beam_tiny.write(target)


def test_a_parent_that_is_a_file_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write beam-tiny"):
        beam_tiny.write(tmp_path / "file" / "tiny")


def test_an_interrupted_copy_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beam_tiny, "FILES", (*beam_tiny.FILES, "not_there.bin"))
    with pytest.raises(OutputError):
        beam_tiny.write(tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_json(tmp_path: Path) -> None:
    result = CliRunner().invoke(model, ["tiny", "-o", str(tmp_path / "t"), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["path"] == str(tmp_path / "t")


def test_writing_needs_neither_torch_nor_transformers(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from beam_trt.assets import beam_tiny;"
        f"beam_tiny.write(Path({str(tmp_path / 't')!r}));"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_texts_for_calibration_and_judging_are_apart() -> None:
    calibration, held_out = calibration_texts(), held_out_texts()
    assert len(calibration) >= 100
    assert sum(text.startswith("<|start|>system") for text in calibration) >= 90
    assert sum(text.startswith("<|start|>system") for text in held_out) >= 100
    assert set(calibration).isdisjoint(held_out)


def test_held_out_dialogues_carry_their_right_result() -> None:
    for row in held_out_dialogues():
        assert row["prompt"].endswith("<|start|>assistant")
        assert row["text"].startswith(row["prompt"])
        completion = row["text"][len(row["prompt"]) :]
        if "answer" in row["expected"]:
            assert completion.endswith(row["expected"]["answer"] + "<|return|>")
        else:
            assert completion.endswith("<|call|>")
            assert all(f" to={c['name']}<" in completion for c in row["expected"]["tool_calls"])
