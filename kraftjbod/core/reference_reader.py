"""WIRE. ``ReferenceReader``: reads the files and variables that references stand for.

* A file is a regular file of at most :data:`MAX_FILE_BYTES` bytes, so that no pipe or device blocks
  a start.
* Restrictions apply to the real path, behind symbolic links.
* Files that users outside of the file's group can read are remembered, for a warning.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kraftjbod.core.config_references import (
    Provider,
    ProviderKind,
    Reference,
    read_with,
    references_in,
    replaced_references,
)
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.properties import parse_properties

#: Largest file that a reference may name: certificates and passwords are far smaller.
MAX_FILE_BYTES: Final = 256 * 1024
CREDENTIALS_VARIABLE: Final = "CREDENTIALS_DIRECTORY"


class ReferenceReader:
    """Reads the texts of references. A properties file is read once per reader, and the file of any
    other reference each time.

    ``open_files`` has the paths of the files read so far that every user of the host can read.

    :param variables: the environment variables of the process.
    :param base_dir: directory of relative paths.
    """

    def __init__(self, variables: Mapping[str, str], base_dir: str) -> None:
        self._variables = variables
        self._base_dir = base_dir
        self._properties: dict[str, dict[str, str]] = {}
        #: Paths of files that were read, and that every user of the host can read.
        self.open_files: set[str] = set()

    def read_reference(self, provider: Provider, reference: Reference) -> str:
        """Return the text that ``reference`` stands for.

        :raises ConfigError: with the reason, without the text of any file or variable.
        """
        match provider.kind:
            case ProviderKind.FILE:
                return self._property(provider, reference)
            case ProviderKind.DIRECTORY:
                return self._file_of(reference.path, provider, reference)
            case ProviderKind.CREDENTIAL:
                return self._credential(provider, reference)
            case ProviderKind.ENVIRONMENT:
                return self._variable(provider, reference)

    def _property(self, provider: Provider, reference: Reference) -> str:
        if not reference.path:
            raise ConfigError("write the path of a properties file and a key, separated by a colon")
        path = self._allowed(reference.path, provider)
        if path not in self._properties:
            self._properties[path] = parse_properties(self._read(path), path)
        found = self._properties[path].get(reference.key)
        if found is None:
            raise ConfigError(f"the file {path} does not have this key")
        return found

    def _file_of(self, directory: str, provider: Provider, reference: Reference) -> str:
        """Return the content of a file, without line ends at its end: editors append one."""
        name = reference.key
        if not directory:
            raise ConfigError("write the path of a directory and a file name, separated by a colon")
        if not name or "/" in name or name in (".", ".."):
            raise ConfigError("the part after the last colon has to be the name of a file")
        return self._read(self._allowed(f"{directory}/{name}", provider)).rstrip("\r\n")

    def _credential(self, provider: Provider, reference: Reference) -> str:
        directory = self._variables.get(CREDENTIALS_VARIABLE, "")
        if not directory:
            raise ConfigError(
                f"{CREDENTIALS_VARIABLE} is not set: add LoadCredential= to the unit of systemd, "
                "and start the daemon by it"
            )
        if reference.path:
            raise ConfigError("a credential has a name and no path")
        return self._file_of(directory, provider, reference)

    def _variable(self, provider: Provider, reference: Reference) -> str:
        if reference.path:
            raise ConfigError("an environment variable has a name and no path")
        names = provider.allowed_names
        if names is not None and names.fullmatch(reference.key) is None:
            raise ConfigError("allowlist.pattern of the provider does not allow this variable")
        found = self._variables.get(reference.key)
        if found is None:
            raise ConfigError("the process does not have this environment variable")
        return found

    def _allowed(self, path: str, provider: Provider) -> str:
        """Return the real path of a file that the provider may read.

        :raises ConfigError: the provider may not read it.
        """
        real = os.path.realpath(os.path.join(self._base_dir, path))
        if provider.allowed_paths is None:
            return real
        for root in provider.allowed_paths:
            allowed = os.path.realpath(os.path.join(self._base_dir, root))
            if real == allowed or real.startswith(allowed.rstrip("/") + "/"):
                return real
        raise ConfigError("allowed.paths of the provider does not allow this file")

    def _read(self, path: str) -> str:
        try:
            # Opening a pipe would block without O_NONBLOCK.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with open(fd, "rb") as file:
                found = os.fstat(fd)
                if not stat.S_ISREG(found.st_mode):
                    raise ConfigError(f"{path} is no file")
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as e:
            raise ConfigError(f"the file {path} cannot be read: {e.strerror}") from e
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"the file {path} has more than {MAX_FILE_BYTES} bytes")
        if found.st_mode & stat.S_IROTH:
            self.open_files.add(path)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            # The error quotes bytes of the file.
            raise ConfigError(f"the file {path} is not UTF-8") from None


@dataclass(frozen=True, slots=True)
class DynamicReferences:
    """Replaces the references in values that change while a broker runs.

    Administrators of the cluster set these values, and need no account on the broker's host. So a
    provider has to be restricted in the broker's file; the credentials of a unit are restricted.
    """

    providers: Mapping[str, Provider]
    variables: Mapping[str, str]
    """The environment variables of the process."""
    base_dir: str
    """Directory of relative paths."""

    def resolve(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return ``values`` with their references replaced. Reads files.

        :raises ConfigError: naming the key and the reference that cannot be replaced.
        """
        reader = ReferenceReader(self.variables, self.base_dir)
        resolved = {}
        for key, value in values.items():
            texts = {}
            for reference in references_in(value):
                provider = self.providers.get(reference.provider)
                if provider is not None and not provider.is_restricted:
                    raise ConfigError(
                        f"{key}: {reference}: the provider may read everything: restrict it by "
                        f"config.providers={reference.provider} and "
                        f"config.providers.{reference.provider}.param.allowed.paths, or "
                        "allowlist.pattern, in the broker's file"
                    )
                texts[reference.text] = read_with(
                    self.providers, reader.read_reference, reference, source=key
                )
            resolved[key] = replaced_references(value, texts)
        return resolved


#: References that no provider can replace.
NO_REFERENCES: Final = DynamicReferences({}, {}, "/")
