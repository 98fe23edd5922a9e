"""WIRE. Build the parts of ``broker/directories``."""

from __future__ import annotations

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.directories.cordon_lift import CordonLift
from kraftjbod.broker.directories.log_dir_admin import LogDirAdmin
from kraftjbod.broker.directories.log_dir_cordons import LogDirCordons
from kraftjbod.broker.directories.log_dir_metrics import LogDirMetrics, register_cleaner_figures
from kraftjbod.broker.directories.log_dir_monitor import LogDirMonitor
from kraftjbod.broker.directories.log_dir_state_handler import LogDirStateHandler
from kraftjbod.broker.directories.scrubs import Scrubs
from kraftjbod.broker.directories.stray_retention import StrayRetention
from kraftjbod.core.config import BrokerConfig
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.wiring.broker_disks import BrokerDisks
from kraftjbod.daemon.wiring.cluster_wiring import ClusterWiring
from kraftjbod.daemon.wiring.replica_wiring import ReplicaWiring
from kraftjbod.storage.identity.dir_attacher import DirAttacher
from kraftjbod.storage.log_dirs.slow_dirs import SlowDirs


class DirectoryWiring:
    """Builds the parts that react to the states of log directories, and administer directories."""

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        disks: BrokerDisks,
        cluster: ClusterWiring,
        replicas: ReplicaWiring,
        tasks: BackgroundTasks,
    ) -> None:
        self._config = config
        self._environment = environment
        self._disks = disks
        self._cluster = cluster
        self._replicas = replicas
        self.state_handler = LogDirStateHandler(
            channel=disks.failures,
            fetchers=replicas.fetchers,
            moves=replicas.moves,
            replicas=replicas.manager,
            assignments=cluster.assignments,
            publisher=replicas.publisher,
            logs=disks.logs,
            lifecycle=cluster.lifecycle,
            metadata_dir=config.metadata_dir,
            leaderships=replicas.leaderships,
        )
        self.cordons = LogDirCordons(
            logs=disks.logs,
            lifecycle=cluster.lifecycle,
            metrics=environment.metrics,
            on_lifted=replicas.publisher.reconcile_again,
        )
        cluster.dynamic_configs.subscribe(self.cordons.take)
        self._watch()
        self._administer(tasks)

    def _watch(self) -> None:
        config, environment, disks = self._config, self._environment, self._disks
        cluster, replicas = self._cluster, self._replicas
        self.stray_retention = StrayRetention(
            broker_id=config.node_id,
            logs=disks.logs,
            cache=cluster.cache,
            clock=environment.clock,
            retention_ms=config.log_stray_retention_ms,
            check_interval_ms=config.log_retention_check_interval_ms,
        )
        self.scrubs = Scrubs(
            logs=disks.logs,
            replicas=replicas.hosted,
            damaged=replicas.damaged,
            fetchers=replicas.fetchers,
            clock=environment.clock,
            is_enabled=config.log_dir_scrub_enable,
            interval_ms=config.log_dir_scrub_interval_ms,
            max_bytes_per_second=config.log_dir_scrub_max_bytes_per_second,
            busy_ms=config.log_dir_slow_min_ms,
        )
        self.monitor = LogDirMonitor(
            logs=disks.logs,
            clock=environment.clock,
            slow_dirs=SlowDirs(
                factor=config.log_dir_slow_factor,
                min_ms=config.log_dir_slow_min_ms,
                may_demote=config.log_dir_slow_action == "demote",
            ),
            warn_free_percent=config.log_dir_warn_free_percent,
        )
        LogDirMetrics(
            logs=disks.logs,
            monitor=self.monitor,
            scrubs=self.scrubs,
            unacknowledged=lambda: cluster.lifecycle.unacknowledged_dirs,
            clock=environment.clock,
            metrics=environment.metrics,
        )
        register_cleaner_figures(disks.logs, environment.metrics)

    def _administer(self, tasks: BackgroundTasks) -> None:
        config, environment, disks = self._config, self._environment, self._disks
        cluster, replicas = self._cluster, self._replicas
        self.admin = LogDirAdmin(
            broker_id=config.node_id,
            logs=disks.logs,
            attacher=DirAttacher(
                metadata_dir=disks.metadata_dir,
                cluster_id=disks.cluster_id,
                node_id=config.node_id,
                make_log_dir=disks.make_log_dir,
                random_bytes=environment.random_bytes,
                timeout_ms=config.log_dir_io_timeout_ms,
                allowed_roots=config.allowed_roots,
            ),
            metadata_dir=disks.metadata_dir,
            replicas=replicas.hosted,
            moves=replicas.moves,
            leftovers=replicas.leftovers,
            publisher=replicas.publisher,
            lifecycle=cluster.lifecycle,
            cordons=self.cordons,
            cordon_lift=CordonLift(
                config=config, dynamic_configs=cluster.dynamic_configs, channel=cluster.channel
            ),
            cache=cluster.cache,
            topic_configs=cluster.topic_configs,
            reattach_interval_ms=config.log_dir_reattach_interval_ms,
            jobs=tasks.jobs,
            registration_timeout_ms=config.log_dir_registration_timeout_ms,
        )
