"""``kraftjbod-dump-log``: files and directories, intact and damaged, as text and JSON."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from kraftjbod.cli.dump.dump_log_tool import main
from tests.unit.cli.dump.test_segment_dump import segment


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def test_dump_log_of_directory_dumps_all_known_files(tmp_path: Path) -> None:
    log = segment(tmp_path)
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n1\n3 0\n")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "other.txt").write_text("?")
    done = run("--files", str(tmp_path), "--print-data-log")
    assert done.exit_code == 0, done.stderr
    assert f"Dumping {log}\nLog starting offset: 0\n" in done.stdout
    assert "payload: v" in done.stdout and done.stdout.endswith("epoch: 3 startOffset: 0\n")
    assert run("--files", str(tmp_path / "other.txt")).stderr.startswith("Ignoring unknown file")


def test_dump_log_with_json_prints_one_document_per_batch_and_record(tmp_path: Path) -> None:
    done = run("--files", segment(tmp_path), "--print-data-log", "--json")
    documents = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["offset"] for one in documents if "offset" in one] == [0, 1, 2]
    assert documents[1]["isvalid"] is True and documents[1]["deleteHorizonMs"] is None


def test_dump_log_continues_after_missing_or_damaged_file(tmp_path: Path) -> None:
    log = segment(tmp_path, spoil=70)
    done = run("--files", f"{tmp_path}/00000000000000000000.index,{log}")
    assert done.exit_code == 1
    assert "isvalid: false" in done.stdout
    missing, damaged = done.stderr.splitlines()
    assert missing.startswith("error: ") and "No such file" in missing
    assert damaged.startswith(f"error: {log}: not all of it")
    before = Path(log).read_bytes()
    assert run("--files", log, "--offsets-decoder").exit_code == 1
    assert Path(log).read_bytes() == before
