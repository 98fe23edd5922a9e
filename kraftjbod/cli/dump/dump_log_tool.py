"""WIRE. ``kraftjbod-dump-log``: prints files of a log directory.

Flags and output are those of Kafka's ``kafka-dump-log.sh`` for files that Kafka has. A directory
stands for all known files in it. The tool writes nothing and contacts no broker: use it for stopped
brokers or closed files. If a file is damaged, the damage is reported on standard error, the rest is
printed, and the exit code is 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import click
from click.shell_completion import CompletionItem

from kraftjbod.cli.dump import index_dump, record_formats, state_dump
from kraftjbod.cli.dump.index_dump import IndexStyle
from kraftjbod.cli.dump.record_formats import Decoder
from kraftjbod.cli.dump.segment_dump import DumpItem, DumpStyle, dump_segment
from kraftjbod.cli.terminal.command import echo_json, json_option, report, tool
from kraftjbod.core.errors import KraftJbodError
from kraftjbod.storage.dir_names import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)

_OFFSETS: Final = (
    *(RECOVERY_POINT_CHECKPOINT, LOG_START_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT),
    CLEANER_CHECKPOINT,
)
_TEXTS: Final = (META_PROPERTIES, PARTITION_METADATA, "quorum-state")
_METADATA_SNAPSHOT: Final = ".checkpoint"

Dump = Callable[[str], Iterator[DumpItem]]


@tool()
@click.option(
    "--files",
    required=True,
    metavar="PATH,...",
    shell_complete=lambda _context, _parameter, text: [CompletionItem(text, type="file")],
    help="Files, or directories of them.",
)
@click.option("--print-data-log", is_flag=True, help="Print the keys and values of records.")
@click.option("--deep-iteration", is_flag=True, help="Print records without their keys and values.")
@click.option(
    "--skip-record-metadata", is_flag=True, help="Print only the keys and values of records."
)
@click.option(
    "--max-bytes", type=click.IntRange(min=1), help="Read at most this many bytes of each log."
)
@click.option("--max-message-size", type=int, expose_value=False, help="Accepted without effect.")
@click.option("--verify-index-only", is_flag=True, help="Print only errors of indexes.")
@click.option(
    "--index-sanity-check", is_flag=True, help="Check only that indexes have a valid format."
)
@click.option("--offsets-decoder", is_flag=True, help="Decode the records of __consumer_offsets.")
@click.option(
    "--transaction-log-decoder", is_flag=True, help="Decode the records of __transaction_state."
)
@click.option(
    "--cluster-metadata-decoder", is_flag=True, help="Decode the records of the cluster's metadata."
)
@json_option
@click.pass_context
def main(
    context: click.Context,
    files: str,
    print_data_log: bool,
    deep_iteration: bool,
    skip_record_metadata: bool,
    max_bytes: int | None,
    verify_index_only: bool,
    index_sanity_check: bool,
    offsets_decoder: bool,
    transaction_log_decoder: bool,
    cluster_metadata_decoder: bool,
    as_json: bool,
) -> None:
    """Print the content of files of a log directory."""
    chosen: list[Decoder] = [
        decode
        for is_chosen, decode in (
            (offsets_decoder, record_formats.format_group_record),
            (transaction_log_decoder, record_formats.format_transaction_record),
            (cluster_metadata_decoder, record_formats.format_metadata_entry),
            (print_data_log, record_formats.plain),
        )
        if is_chosen
    ]
    style = DumpStyle(
        records=bool(chosen) or deep_iteration,
        decode=chosen[0] if chosen else None,
        metadata=not skip_record_metadata,
        max_bytes=max_bytes,
    )
    indexes = IndexStyle(verify_only=verify_index_only, sanity_only=index_sanity_check)
    is_damaged = False
    for path in _paths(files):
        is_damaged |= _show(path, _dump_of(path, style, indexes), as_json=as_json)
    context.exit(1 if is_damaged else 0)


def _paths(files: str) -> Iterator[str]:
    """Yield each named file. For a directory, yield its files of known kinds, by name."""
    for path in filter(None, files.split(",")):
        if not os.path.isdir(path):
            yield path
            continue
        for name in sorted(os.listdir(path)):
            inside = os.path.join(path, name)
            if os.path.isfile(inside) and _dump_of(inside, DumpStyle(), IndexStyle()) is not None:
                yield inside


def _dump_of(path: str, style: DumpStyle, indexes: IndexStyle) -> Dump | None:
    """Return the function that dumps a file; None if its kind is not known."""
    name = os.path.basename(path)
    suffix = os.path.splitext(name)[1]
    if name == LEADER_EPOCH_CHECKPOINT:
        return state_dump.dump_leader_epochs
    if name in _OFFSETS:
        return state_dump.dump_offset_checkpoint
    if name in _TEXTS:
        return state_dump.dump_text
    by_suffix: dict[str, Dump] = {
        LOG_SUFFIX: partial(dump_segment, style=style),
        INDEX_SUFFIX: partial(index_dump.dump_offset_index, style=indexes),
        TIME_INDEX_SUFFIX: partial(index_dump.dump_time_index, style=indexes),
        TRANSACTION_INDEX_SUFFIX: index_dump.dump_transaction_index,
        SNAPSHOT_SUFFIX: state_dump.dump_producers,
        _METADATA_SNAPSHOT: state_dump.dump_metadata_snapshot,
    }
    return by_suffix.get(suffix)


def _show(path: str, dump: Dump | None, *, as_json: bool) -> bool:
    """Print a file, and return whether it is damaged."""
    if dump is None:
        report(f"Ignoring unknown file {path}")
        return False
    if not as_json:
        click.echo(f"Dumping {path}")
    is_damaged = False
    try:
        for item in dump(path):
            is_damaged |= item.is_problem
            if as_json:
                if item.facts:
                    echo_json({"file": path, **item.facts})
            elif item.line is not None:
                click.echo(item.line)
    except BrokenPipeError:
        raise
    except (KraftJbodError, OSError) as e:
        # The next file may be intact.
        sys.stdout.flush()
        report("error: " + " ".join(str(e).split()))
        if as_json:
            echo_json({"file": path, "error": str(e)})
        return True
    if is_damaged:
        sys.stdout.flush()
        report(f"error: {path}: not all of it is as it should be; see above")
    return is_damaged


if __name__ == "__main__":
    main(prog_name="kraftjbod-dump-log")
