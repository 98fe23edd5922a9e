"""WIRE. ``make_log_dir``: create a log directory with the limits of the configuration."""

from __future__ import annotations

from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.storage.log_dirs.free_space_policy import FreeSpacePolicy
from kraftjbod.storage.log_dirs.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.log_dirs.reserve_file import ReserveFile


def make_log_dir(
    config: BrokerConfig | ControllerConfig,
    environment: Environment,
    path: str,
    *,
    failures: LogDirFailureChannel,
    is_cordoned: bool = False,
) -> LogDir:
    """Return a log directory with its own ``Vfs``, not yet locked, identified or watched.

    :param failures: is notified when the directory fails.
    """
    vfs = environment.make_vfs()
    return LogDir(
        path=path,
        vfs=vfs,
        clock=environment.clock,
        failure_channel=failures,
        is_cordoned=is_cordoned,
        io_timeout_ms=config.log_dir_io_timeout_ms,
        io_suspect_ms=config.log_dir_io_suspect_ms,
        check_interval_ms=config.log_dir_check_interval_ms,
        max_queued_ops=config.log_dir_queue_max_ops,
        max_queued_bytes=config.log_dir_queue_max_bytes,
        reserve=ReserveFile(
            vfs=vfs,
            directory=path,
            size_bytes=config.log_dir_reserve_bytes,
            random_bytes=environment.random_bytes,
        ),
        free_space_policy=FreeSpacePolicy(
            reserve_bytes=config.log_dir_reserve_bytes,
            min_free_bytes=config.log_dir_min_free_bytes,
            heal_free_bytes=config.log_dir_heal_free_bytes,
        ),
        make_executor=environment.make_executor,
    )
