"""WIRE. Open the log directories of a broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.config_model import MAX_LONG
from kraftjbod.core.descriptor_budget import DescriptorBudget
from kraftjbod.core.errors import NoLogDirError
from kraftjbod.core.node_config import ALL_LOG_DIRS
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.wiring.log_dir_maker import make_log_dir
from kraftjbod.storage.cleaning.log_cleaner import CleanerLimits
from kraftjbod.storage.identity.dir_opener import DirOpener
from kraftjbod.storage.log.producer_state import ProducerLimits
from kraftjbod.storage.log_dirs.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.segments.segment_cache import CacheLimits

#: Maximum number of directory openings in the life of the process; each reattachment counts.
MAX_LOG_DIRS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDisks:
    """The log directories that :func:`open_disks` opened, and the cluster id in them.

    ``logs`` has the data directories. ``failures`` is the queue of directories whose state changed.
    """

    cluster_id: str
    failures: LogDirFailureChannel
    metadata_dir: LogDir
    logs: LogManager
    make_log_dir: Callable[[str], LogDir]
    """Creates directories that are added while the broker runs."""


async def open_disks(config: BrokerConfig, environment: Environment) -> BrokerDisks:
    """Open the configured log directories and the metadata directory.

    :raises StartupError: the broker cannot start with them; the message has the remedy.
    """
    failures = LogDirFailureChannel(max_dirs=MAX_LOG_DIRS)

    def make_one(path: str) -> LogDir:
        is_cordoned = ALL_LOG_DIRS in config.cordoned_log_dirs or path in config.cordoned_dirs
        return make_log_dir(config, environment, path, failures=failures, is_cordoned=is_cordoned)

    paths = dict.fromkeys((*config.data_dirs, config.metadata_dir))
    dirs = {path: make_one(path) for path in paths}
    opener = DirOpener(
        log_dirs=list(dirs.values()),
        metadata_dir=config.metadata_dir,
        node_id=config.node_id,
        cluster_id=config.cluster_id,
        random_bytes=environment.random_bytes,
        timeout_ms=config.log_dir_io_timeout_ms,
        make_log_dir=make_one,
    )
    cluster_id = await opener.open()
    data_dirs = [*(dirs[path] for path in config.data_dirs), *opener.added]
    _require_any(data_dirs)
    logs = LogManager(
        dirs=data_dirs,
        clock=environment.clock,
        default_config=config.topic_defaults(),
        random_bytes=environment.random_bytes,
        retention_check_interval_ms=config.log_retention_check_interval_ms,
        checkpoint_interval_ms=config.log_flush_offset_checkpoint_interval_ms,
        flush_check_interval_ms=config.log_flush_scheduler_interval_ms,
        producer_limits=ProducerLimits(
            config.producer_id_expiration_ms,
            config.max_producer_ids_per_partition,
            config.producer_snapshot_interval_bytes,
        ),
        cleaner=CleanerLimits(
            is_enabled=config.log_cleaner_enable,
            threads=config.log_cleaner_threads,
            max_bytes_per_second=min(int(config.log_cleaner_io_max_bytes_per_second), MAX_LONG),
            map_bytes=config.log_cleaner_dedupe_buffer_size,
            backoff_ms=config.log_cleaner_backoff_ms,
            reserve_bytes=config.log_dir_reserve_bytes,
        ),
        cache_limits=_cache_limits(config, environment, len(data_dirs)),
    )
    return BrokerDisks(
        cluster_id=cluster_id,
        failures=failures,
        metadata_dir=dirs[config.metadata_dir],
        logs=logs,
        make_log_dir=make_one,
    )


def _cache_limits(config: BrokerConfig, environment: Environment, dirs: int) -> CacheLimits:
    """Return the limits of one directory: its share of the limits for all ``dirs`` directories."""
    most_open = config.log_open_segments_max or (
        DescriptorBudget(environment.max_open_files).max_open_segments
    )
    return CacheLimits(max(1, config.log_index_cache_bytes // dirs), max(1, most_open // dirs))


def _require_any(dirs: Sequence[LogDir]) -> None:
    """Check that at least one directory is online.

    :raises NoLogDirError: none is; the message has the reason of each directory.
    """
    if not any(log_dir.is_online for log_dir in dirs):
        reasons = "; ".join(f"{log_dir.path}: {log_dir.offline_reason}" for log_dir in dirs)
        raise NoLogDirError(
            f"none of the log directories can be used: {reasons}. Bring one of them back. Only if "
            f"all are lost permanently, mount empty disks and run `kraftjbod-storage format "
            f"--ignore-formatted --replace-lost` (docs/situations/broker-lost-its-disks.md)"
        )
