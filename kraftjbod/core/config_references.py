"""PURE. References in configurations: ``${provider:path:key}``, Kafka's config providers (KIP-297).

* The providers ``file``, ``dir``, ``env`` and ``cred`` exist without a declaration. ``cred`` is
  this project's: a credential that systemd passes to the process.
* ``config.providers`` may declare these and other names with Kafka's classes, and restrict the
  paths and environment variables that a provider reads.
* Each value is replaced once, so text that a reference stands for contains no references.
* An unknown provider and a missing value are errors. Kafka would use the text of the reference, as
  a password for example.
* No error message contains the text that a reference stands for.

``reference_reader.py`` reads files and environment variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from kraftjbod.core.config_model import list_items, nearest_hint
from kraftjbod.core.errors import ConfigError

PROVIDERS_KEY: Final = "config.providers"
_SUBKEYS: Final = f"{PROVIDERS_KEY}."
#: References in one configuration.
MAX_REFERENCES: Final = 1000
_CLASS_PACKAGE: Final = "org.apache.kafka.common.config.provider."
#: As in Kafka's ConfigTransformer.
_REFERENCE: Final = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
#: Shorter texts are not removed from error messages: they occur in other words too.
_MIN_REDACTED_CHARS: Final = 6
#: typed_value quotes the first characters of a long value.
_QUOTED_CHARS: Final = 50


class ProviderKind(Enum):
    """What a provider reads. The value is the provider's name without a declaration."""

    FILE = "file"
    DIRECTORY = "dir"
    ENVIRONMENT = "env"
    CREDENTIAL = "cred"


_CLASSES: Final[Mapping[str, ProviderKind]] = {
    f"{_CLASS_PACKAGE}FileConfigProvider": ProviderKind.FILE,
    f"{_CLASS_PACKAGE}DirectoryConfigProvider": ProviderKind.DIRECTORY,
    f"{_CLASS_PACKAGE}EnvVarConfigProvider": ProviderKind.ENVIRONMENT,
}
#: The parameter that each kind of provider has in Kafka.
_PARAMETERS: Final[Mapping[ProviderKind, str]] = {
    ProviderKind.FILE: "allowed.paths",
    ProviderKind.DIRECTORY: "allowed.paths",
    ProviderKind.ENVIRONMENT: "allowlist.pattern",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """Source from which references get their texts, such as files, and what it may read.

    A restriction that is None does not limit: the provider may read everything that the process may
    read.
    """

    kind: ProviderKind
    allowed_paths: tuple[str, ...] | None = None
    """Files, or directories with everything below them."""
    allowed_names: re.Pattern[str] | None = None
    """Regular expression that whole names of environment variables match."""

    @property
    def is_restricted(self) -> bool:
        """Whether the provider reads only what the node's file or systemd's unit names."""
        if self.kind is ProviderKind.CREDENTIAL:
            return True
        return self.allowed_paths is not None or self.allowed_names is not None


_BUILT_IN: Final[Mapping[str, Provider]] = {
    kind.value: Provider(kind=kind) for kind in ProviderKind
}


@dataclass(frozen=True, slots=True)
class Reference:
    """A parsed ``${provider:path:key}`` in the value of a configuration key. ``path`` is empty in
    the form ``${provider:key}``.
    """

    provider: str
    path: str
    key: str
    text: str
    """The reference as it is written."""

    def __str__(self) -> str:
        return self.text


#: Returns the text that a reference stands for. The message of its ConfigError has only the reason.
ReadReference = Callable[[Provider, Reference], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedValues:
    """A node's configuration after its references were replaced, with the origin of each replaced
    text.
    """

    values: dict[str, str] = field(repr=False)
    """Without the keys that begin with ``config.providers.``."""
    references: Mapping[str, tuple[Reference, ...]] = field(default_factory=dict)
    """The references in the value of each key that had any."""
    texts: Mapping[str, Reference] = field(default_factory=dict, repr=False)
    """The reference that stood for each text."""

    def redacted(self, message: str) -> str:
        """Return an error message about the values, without texts that references stand for.

        Each such text of at least 6 characters is replaced by its reference.

        Values of passwords occur in no message. This is for other keys, whose messages quote
        values, because a wrong reference may stand for a secret.
        """
        for text, reference in sorted(self.texts.items(), key=lambda one: -len(one[0])):
            stripped = text.strip()
            parts = {stripped, stripped[:_QUOTED_CHARS], *list_items(stripped)}
            parts |= {repr(part)[1:-1] for part in parts}
            for part in sorted(parts, key=lambda part: (-len(part), part)):
                if len(part) >= _MIN_REDACTED_CHARS:
                    message = message.replace(part, str(reference))
        return message


def references_in(text: str) -> Iterator[Reference]:
    """Yield the references in the value of a key."""
    for found in _REFERENCE.finditer(text):
        yield Reference(found[1].strip(), (found[2] or "").strip(), found[3].strip(), found[0])


def is_one_reference(text: str) -> bool:
    """Return whether ``text`` consists of one reference and nothing else."""
    return _REFERENCE.fullmatch(text.strip()) is not None


def declared_providers(values: Mapping[str, str], *, source: str) -> dict[str, Provider]:
    """Return the providers by name: those that need no declaration, and those of
    ``config.providers``.

    :raises ConfigError: naming ``source``: the class or a parameter of a provider is unknown, or
        ``allowlist.pattern`` is no regular expression.
    """
    names = list_items(values.get(PROVIDERS_KEY, ""))
    providers = dict(_BUILT_IN)
    known = set()
    for name in names:
        class_key = f"{_SUBKEYS}{name}.class"
        class_name = values.get(class_key, "").strip()
        kind = _BUILT_IN[name].kind if not class_name and name in _BUILT_IN else None
        kind = kind or _CLASSES.get(class_name)
        if kind is None:
            raise ConfigError(
                f"{source}: {class_key} is {class_name or 'not set'}: no Java class is loaded "
                f"here, use {', '.join(_CLASSES)}"
            )
        parameter = _PARAMETERS.get(kind)
        given = None
        known.add(class_key)
        if parameter is not None:
            known.add(f"{_SUBKEYS}{name}.param.{parameter}")
            given = values.get(f"{_SUBKEYS}{name}.param.{parameter}")
        is_path = parameter == "allowed.paths"
        providers[name] = Provider(
            kind=kind,
            allowed_paths=tuple(list_items(given)) if given is not None and is_path else None,
            allowed_names=None if given is None or is_path else _pattern(given, source),
        )
    for key in sorted(values):
        if key.startswith(_SUBKEYS) and key not in known:
            # Ignoring a restriction would allow everything.
            raise ConfigError(
                f"{source}: {key} is no parameter of a provider in {PROVIDERS_KEY}"
                f"{nearest_hint(key, known)}"
            )
    return providers


def _pattern(text: str, source: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as e:
        raise ConfigError(f"{source}: allowlist.pattern is no regular expression: {e}") from e


def resolve_references(
    values: Mapping[str, str],
    read: ReadReference,
    *,
    source: str,
    keys: Collection[str] | None = None,
) -> ResolvedValues:
    """Replace the references in ``values``.

    :param read: returns the text that a reference stands for.
    :param source: path or other name of the configuration, for error messages.
    :param keys: the keys whose values are needed, others are left out; None for all.
    :raises ConfigError: naming ``source``, and the key and the reference that cannot be replaced;
        or there are more than 1,000 references.
    """
    providers = declared_providers(values, source=source)
    resolved: dict[str, str] = {}
    found: dict[str, tuple[Reference, ...]] = {}
    texts: dict[str, Reference] = {}
    count = 0
    for key, value in values.items():
        if key.startswith(_SUBKEYS) or (keys is not None and key not in keys):
            continue
        references = () if key == PROVIDERS_KEY else tuple(references_in(value))
        count += len(references)
        if count > MAX_REFERENCES:
            raise ConfigError(f"{source} has more than {MAX_REFERENCES} references")
        if references:
            found[key] = references
            by_reference = {
                one.text: read_with(providers, read, one, source=f"{source}: {key}")
                for one in references
            }
            texts |= {by_reference[one.text]: one for one in references}
            value = replaced_references(value, by_reference)
        resolved[key] = value
    return ResolvedValues(values=resolved, references=found, texts=texts)


def replaced_references(value: str, by_reference: Mapping[str, str]) -> str:
    """Return ``value`` with each reference replaced by its text."""
    return _REFERENCE.sub(lambda found: by_reference[found[0]], value)


def read_with(
    providers: Mapping[str, Provider], read: ReadReference, reference: Reference, *, source: str
) -> str:
    """Return the text that ``reference`` stands for.

    :param source: origin of the reference and its key, for error messages.
    :raises ConfigError: naming ``source`` and the reference.
    """
    provider = providers.get(reference.provider)
    if provider is None:
        hint = nearest_hint(reference.provider, providers)
        raise ConfigError(
            f"{source}: {reference} names the provider {reference.provider!r}, which does not "
            f"exist: use {', '.join(sorted(providers))}{hint}"
        )
    try:
        return read(provider, reference)
    except ConfigError as e:
        raise ConfigError(f"{source}: {reference}: {e}") from None
