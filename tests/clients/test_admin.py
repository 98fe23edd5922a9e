"""Tests of clients that create, configure and delete topics and groups."""

from __future__ import annotations

import pytest

from kraftjbod.testing.local_cluster import LocalCluster
from tests.clients.conftest import Start
from tests.clients.programs import ADMIN, Client

READ = 100


@pytest.mark.scenario("administers")
def test_admin_operations_of_each_client_return_the_same_expected_answers(
    client: Client, cluster: LocalCluster, start: Start
) -> None:
    if "admin" in client.lacks:
        pytest.skip(f"{client} has no admin client")
    group = f"group-{client}"
    cluster.create_topic(f"read-{client}", partitions=1)
    start("produce", f"read-{client}", 0, READ, 0).wait()
    member = start("group", f"read-{client}", group)
    member.wait_until("all is read", lambda: len(member.numbers) == READ)
    member.end_input()
    member.wait()
    admin = start("admin", f"made-{client}", group)
    admin.wait()
    answers = {name: found for name, found in admin.answers().items() if name != "version"}
    assert answers == {deed: found for deed, found in ADMIN.items() if deed not in client.lacks}
