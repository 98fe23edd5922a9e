"""LOOP. ``LogDirCordons``: marks the directories of this broker that are cordoned (KIP-1066).

``cordoned.log.dirs`` in the broker's file applies from the start. A value in the metadata has
precedence as soon as it is replayed. Both set a flag on the directories, which placement, moves and
descriptions use. A heartbeat reports a change to the controller at once.

A path that is no directory of this broker is logged and ignored: it may have been set for all
brokers, or have been removed from ``log.dirs`` since.
"""

from __future__ import annotations

from collections.abc import Callable

from kraftjbod.broker.cluster.lifecycle.lifecycle_manager import BrokerLifecycleManager
from kraftjbod.core.config import DynamicBrokerConfig
from kraftjbod.core.node_config import ALL_LOG_DIRS
from kraftjbod.core.telemetry import Metrics, get_logger
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.manager.log_manager import LogManager


class LogDirCordons:
    """Marks the directories in ``cordoned.log.dirs`` as cordoned, so that they receive no new
    replicas, and reports changes to the controller.

    Call ``take(config)`` for each change of the configuration and ``renew()`` for new directories.
    """

    def __init__(
        self,
        *,
        logs: LogManager,
        lifecycle: BrokerLifecycleManager,
        metrics: Metrics,
        on_lifted: Callable[[], None],
    ) -> None:
        """Create it with the cordons of the present directories.

        :param on_lifted: called when a directory accepts new replicas again.
        """
        self._logs = logs
        self._on_lifted = on_lifted
        self._lifecycle = lifecycle
        self._cordoned: tuple[str, ...] = ()
        #: Directories last reported to the controller; initially those in the registration.
        self._reported = {d.directory_id for d in logs.online_dirs() if d.is_cordoned}
        self._log = get_logger(component="log_dir_cordons")
        metrics.gauge("CordonedLogDirectoryCount", lambda: len(self._cordoned_dirs()))

    def take(self, config: DynamicBrokerConfig) -> None:
        """Cordon the directories that ``config`` names, and no others."""
        changed = config.cordoned_log_dirs != self._cordoned
        self._cordoned = config.cordoned_log_dirs
        known = {ALL_LOG_DIRS, *(log_dir.path for log_dir in self._logs.dirs())}
        foreign = [path for path in self._cordoned if path not in known]
        if changed and foreign:
            self._log.info("cordoned_log_dirs_not_here", paths=foreign)
        self.renew()

    def renew(self) -> None:
        """Cordon directories that were added or identified since the last change, and report
        changes."""
        for log_dir in self._logs.dirs():
            log_dir.is_cordoned = ALL_LOG_DIRS in self._cordoned or log_dir.path in self._cordoned
        cordoned = self._cordoned_dirs()
        ids = {log_dir.directory_id for log_dir in cordoned}
        if ids != self._reported:
            is_lifted = not self._reported <= ids
            self._reported = ids
            self._log.info("log_dirs_cordoned", paths=[log_dir.path for log_dir in cordoned])
            self._lifecycle.set_cordoned(ids)
            if is_lifted:
                self._on_lifted()

    def _cordoned_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self._logs.dirs() if log_dir.is_cordoned]
