"""``write_security_files``: files of nodes and users, and who may read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftjbod.cli.clients.client_settings import ClientSettings
from kraftjbod.cli.initial_users import initial_users
from kraftjbod.core.errors import ConfigError, StartupError
from kraftjbod.core.metadata_version import LATEST_METADATA_VERSION
from kraftjbod.core.properties import parse_properties
from kraftjbod.local.security_files import Node, write_security_files

NODES = (Node("controller-100", ("localhost",)), Node("broker-1", ("localhost", "127.0.0.1")))


def _content(directory: Path) -> dict[str, bytes]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in found}


def test_private_keys_and_passwords_are_readable_by_owner_or_group_only(tmp_path: Path) -> None:
    written = write_security_files(tmp_path / "s", nodes=NODES, users=("admin",))
    modes = {str(p.relative_to(tmp_path / "s")): p.stat().st_mode & 0o777 for p in written}
    assert modes == {
        "authority/ca-key.pem": 0o600,
        "authority/ca.pem": 0o644,
        "users/admin.properties": 0o600,
        "controller-100/ca.pem": 0o644,
        "controller-100/node.pem": 0o640,
        "controller-100/node.properties": 0o644,
        "controller-100/users.properties": 0o640,
        "broker-1/ca.pem": 0o644,
        "broker-1/node.pem": 0o640,
        "broker-1/node.properties": 0o644,
    }
    folders = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "s").iterdir()}
    assert folders == {
        "authority": 0o700,
        "users": 0o700,
        "controller-100": 0o750,
        "broker-1": 0o750,
    }


def test_second_call_adds_nodes_and_keeps_existing_files(tmp_path: Path) -> None:
    write_security_files(tmp_path, nodes=NODES, users=("admin",))
    before = _content(tmp_path)
    more = Node("broker-2", ("localhost",))
    written = write_security_files(tmp_path, nodes=(*NODES, more), users=("admin",))
    assert {path.parent.name for path in written} == {"broker-2"}
    after = _content(tmp_path)
    assert {name: after[name] for name in before} == before
    assert after["broker-2/ca.pem"] == before["authority/ca.pem"]


def test_interrupted_call_is_completed_by_the_next_one(tmp_path: Path) -> None:
    """As if the process was killed after each of its files, or while it wrote the next."""
    order = write_security_files(tmp_path / "whole", nodes=NODES, users=("admin",))
    names = [path.relative_to(tmp_path / "whole") for path in order]
    for count in range(len(names)):
        root = tmp_path / str(count)
        write_security_files(root, nodes=NODES, users=("admin",))
        for name in names[count:]:
            (root / name).unlink()
        (root / names[count]).with_name(f"{names[count].name}.new").write_text("half")
        write_security_files(root, nodes=NODES, users=("admin",))
        assert sorted(_content(root)) == sorted(_content(tmp_path / "whole"))
        _require_same_password(root)


def _require_same_password(root: Path) -> None:
    path = root / "users/admin.properties"
    settings = ClientSettings.from_values(parse_properties(path.read_text(), str(path)), str(path))
    login = settings.make_login(str(path))
    assert login is not None
    values = parse_properties((root / "controller-100/users.properties").read_text(), "")
    (user,) = initial_users([values["admin"]], LATEST_METADATA_VERSION, {}, bytes)
    of = user.credential
    salted = user.mechanism.salted_password(login.password, of.salt, of.iterations)
    expected = type(of).from_salted_password(
        user.mechanism, salted, salt=of.salt, iterations=of.iterations
    )
    assert of == expected


def test_controllers_have_the_keys_of_the_password_of_each_user(tmp_path: Path) -> None:
    write_security_files(tmp_path, nodes=NODES, users=("admin",))
    _require_same_password(tmp_path)


def test_missing_key_of_the_authority_is_an_error_with_its_path(tmp_path: Path) -> None:
    write_security_files(tmp_path, nodes=NODES, users=())
    (tmp_path / "authority/ca-key.pem").unlink()
    with pytest.raises(StartupError, match=r"cannot read .*authority/ca-key\.pem"):
        write_security_files(tmp_path, nodes=(), users=())


def test_settings_without_login_of_a_user_are_an_error(tmp_path: Path) -> None:
    write_security_files(tmp_path, nodes=(), users=("admin",))
    (tmp_path / "users/admin.properties").write_text("security.protocol=PLAINTEXT\n")
    with pytest.raises(StartupError, match="expected the settings of a user with SASL"):
        write_security_files(tmp_path, nodes=(), users=("admin",))


def test_parse_node_reads_id_and_hosts() -> None:
    assert Node.parse("broker", "01=a, 10.0.0.1") == Node("broker-1", ("a", "10.0.0.1"))
    for text in ("1", "1=", "x=a", "=a"):
        with pytest.raises(ConfigError, match="--broker"):
            Node.parse("broker", text)
