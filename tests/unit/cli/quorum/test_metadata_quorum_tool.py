"""``kraftjbod-metadata-quorum``, against a scripted controller behind a real listener."""

from __future__ import annotations

import json

from kraftjbod.cli.quorum.metadata_quorum_tool import main
from tests.unit.broker.apis.test_quorum_apis import DIRECTORY, answer
from tests.unit.broker.scripted_controller import ScriptedController, serving
from tests.unit.cli.mini_broker import invoke

STATUS = f"""\
ClusterId:              c
LeaderId:               100
LeaderEpoch:            4
HighWatermark:          9
MaxFollowerLag:         5
MaxFollowerLagTimeMs:   1000
CurrentVoters:          [{{"id": 100, "directoryId": "{DIRECTORY}", \
"endpoints": ["CONTROLLER://[::1]:9090"]}}, {{"id": 101}}]
CurrentObservers:       [{{"id": 1}}]
"""
HEAD = (
    "NodeId\tDirectoryId           \tLogEndOffset\tLag\t"
    "LastFetchTimestamp\tLastCaughtUpTimestamp\tStatus  \t"
)
MISUSE = [
    (["--status", "--replication"], "Only one of --status or --replication should be"),
    ([], "One of --status or --replication must be specified"),
    (["--status", "--human-readable"], "only supported along with --replication"),
]


async def test_metadata_quorum_describe_prints_output_of_kafkas_tool() -> None:
    controller = ScriptedController(answer)
    async with serving(controller):
        to = ("--bootstrap-controller", f"127.0.0.1:{controller.server.port}", "describe")
        status = await invoke(main, *to, "--status")
        assert (status.exit_code, status.stdout) == (0, STATUS)
        replication = (await invoke(main, *to, "--replication")).stdout.splitlines()
        assert replication[0] == HEAD
        assert [[cell.strip() for cell in line.split("\t")] for line in replication[2:]] == [
            ["101", "AAAAAAAAAAAAAAAAAAAAAA", "7", "5", "4900", "4000", "Follower", ""],
            ["1", "AAAAAAAAAAAAAAAAAAAAAA", "-1", "13", "-1", "-1", "Observer", ""],
        ]
        readable = (await invoke(main, *to, "--replication", "--human-readable")).stdout
        assert readable.count(" ms ago") == 4
        document = json.loads((await invoke(main, *to, "--replication", "--json")).stdout)
        assert [replica["lag"] for replica in document["replicas"]] == [0, 5, 13]
        for words, why in MISUSE:
            done = await invoke(main, *to, *words)
            assert done.exit_code == 1
            assert why in done.stderr
