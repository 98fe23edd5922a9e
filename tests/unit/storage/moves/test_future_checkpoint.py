"""The ``future-copy-checkpoint`` file of a future replica."""

from __future__ import annotations

import pytest

from kraftjbod.core.ids import DirectoryId
from kraftjbod.storage.checkpoints import CorruptCheckpointError
from kraftjbod.storage.log.leader_epochs import EpochEntry
from kraftjbod.storage.moves.future_checkpoint import FutureCheckpoint, format_future, parse_future

CHECKPOINT = FutureCheckpoint(
    source_directory_id=DirectoryId(bytes(range(16))),
    synced={0: 100, 17: 5},
    log_start_offset=3,
    log_end_offset=20,
    epochs=(EpochEntry(1, 3), EpochEntry(4, 9)),
    is_complete=True,
)


def test_future_checkpoint_is_read_as_written() -> None:
    assert parse_future(format_future(CHECKPOINT).decode(), "x") == CHECKPOINT


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"version": 1}', format_future(CHECKPOINT).decode().replace("17", "[]")],
)
def test_parse_future_rejects_a_damaged_file_and_names_its_path(text: str) -> None:
    with pytest.raises(CorruptCheckpointError, match="/d2/f"):
        parse_future(text, "/d2/f")
