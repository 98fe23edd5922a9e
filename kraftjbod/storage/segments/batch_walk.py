"""PURE. Walking over the batches of one segment: which are sound, and where sound ones go on.

A *sound* batch has a header that can be, holds the offset that is next, is whole and, where that
is asked for, fits its CRC. Logs have no gaps: what begins after the next offset is not sound.
Damage reaches from the first unsound batch to the next sound one.
Only where compaction may have taken records away does a batch that begins later count as sound, as
long as it ends in time.

Bytes come through a ``read_at``; what becomes of damage is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple, Protocol, TypeVar

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.record_batch import (
    HEADER_BYTES,
    BatchHeader,
    batches,
    check_crc,
    read_header,
)

#: Returns bytes for ``(position, size)``, fewer at the end of the file or of the trusted range, or
#: None if they have to be read in another way.
ReadAt = Callable[[int, int], Buffer | None]

#: Gets how many bytes were read since the last time.
OnProgress = Callable[[int], None]

#: What a segment spans at most; indexes hold offsets in 32 bits.
LARGEST_RELATIVE_OFFSET: Final = 2**31 - 1
WALK_BYTES: Final = 4 * 1024 * 1024
#: Headers are read this much at once; an index entry is seldom further away.
_BLOCK_BYTES: Final = 4096
#: Places at which a sound batch is looked for in one step; each may cost a seek.
_TRIES_PER_STEP: Final = 16
_EMPTY: Final = memoryview(b"")


class WouldWait(Exception):
    """The bytes are not in memory, and this reader must not wait."""


def no_progress(_size_bytes: int) -> None:
    """For whom progress does not matter."""


class Damage(NamedTuple):
    """A stretch of a log that is not sound; it begins in its segment at ``position``."""

    offset: int
    #: Of the first sound batch after it.
    next_offset: int
    position: int


class Located(NamedTuple):
    """A batch and where it begins in the file."""

    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        """Where the next batch begins in the file."""
        return self.position + self.header.size_bytes

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.header.next_offset


class Sound(Protocol):
    """A sound batch, or some that follow one another."""

    @property
    def end(self) -> int:
        """Where the next batch begins in the file."""
        ...

    @property
    def next_offset(self) -> int:
        """The offset after the last batch."""
        ...


S = TypeVar("S", bound=Sound)


def sound_batches(
    read_at: ReadAt,
    *,
    position: int,
    end: int,
    next_offset: int,
    check_crc_of_each: bool,
    on_progress: Callable[[int], None],
    chunk_bytes: int = WALK_BYTES,
    gaps_below: int | None = None,
) -> Iterator[Located]:
    """Batches from ``position`` on, up to the first that is not sound, or to ``end``.

    The batch at ``position`` has to begin with ``next_offset``; with ``gaps_below``, any may begin
    later and has to end below that offset. ``on_progress`` gets how many
    bytes were read since the last time; that is after each ``chunk_bytes``, or after each
    batch that is larger.
    """
    want = chunk_bytes
    while position < end:
        asked, begin = min(want, end - position), position
        chunk = _read(read_at, position, asked)
        try:
            for at, header in batches(chunk):
                _require_next(header, next_offset, gaps_below)
                if check_crc_of_each:
                    check_crc(chunk, at, header)
                position, next_offset = begin + at + header.size_bytes, header.next_offset
                yield Located(begin + at, header)
            if position == begin:
                want = read_header(chunk).size_bytes
        except CorruptRecordError:
            return
        on_progress(position - begin)
        is_stuck = position == begin and (want > end - begin or want <= len(chunk))
        if is_stuck or len(chunk) < asked:
            return  # The segment, or its file, ends inside this batch.


def around_damage(
    read_at: ReadAt,
    *,
    end: int,
    begin_offset: int,
    end_offset: int,
    known: Callable[[int], Iterable[int]],
    check_crc_of_each: bool,
    on_progress: Callable[[int], None],
    chunk_bytes: int = WALK_BYTES,
    gaps_below: int | None = None,
) -> Iterator[Located | Damage]:
    """Walk a segment in order: its sound batches, and the damage between and after them.

    Missing offsets before ``end_offset``, where the segment should end, are damage too. ``known``
    returns positions after a position at which batches begin according to an index; ``gaps_below``
    is as in :func:`sound_batches`.
    """
    pieces = sound_around_damage(
        lambda position, next_offset: sound_batches(
            read_at,
            position=position,
            end=end,
            next_offset=next_offset,
            check_crc_of_each=check_crc_of_each,
            on_progress=on_progress,
            chunk_bytes=chunk_bytes,
            gaps_below=gaps_below,
        ),
        read_at,
        end=end,
        begin_offset=begin_offset,
        end_offset=end_offset,
        known=known,
    )
    return (found for found in pieces if found is not None)


def sound_around_damage(
    sound_from: Callable[[int, int], Iterator[S]],
    read_at: ReadAt,
    *,
    end: int,
    begin_offset: int,
    end_offset: int,
    known: Callable[[int], Iterable[int]],
) -> Iterator[S | Damage | None]:
    """:func:`around_damage` with any walk over sound batches.

    ``sound_from`` gets a position and its offset, and stops before the first unsound batch. None
    comes after some tries to find a sound batch, so that a caller can proceed in steps.
    """
    position, next_offset = 0, begin_offset
    limit = min(end_offset, begin_offset + LARGEST_RELATIVE_OFFSET + 1)
    while True:
        for sound in sound_from(position, next_offset):
            yield sound
            position, next_offset = sound.end, sound.next_offset
        if position >= end:
            if next_offset < end_offset:
                yield Damage(next_offset, end_offset, position)  # A tail is lost, or all of it.
            return
        offsets = range(next_offset + 1, limit)
        resumed = yield from _first_sound(read_at, position, known(position), end, offsets)
        if resumed is None:
            yield Damage(next_offset, end_offset, position)
            return
        yield Damage(next_offset, resumed.header.base_offset, position)
        position, next_offset = resumed.position, resumed.header.base_offset


def _first_sound(
    read_at: ReadAt, damaged_at: int, known: Iterable[int], end: int, offsets: range
) -> Generator[None, None, Located | None]:
    """Return the first sound batch after the damage, with offsets in ``offsets``.

    The position that follows from the header of the damaged batch is tried first, then the
    ``known`` ones. No CRC covers the offset of a batch.
    """
    damaged = batch_at(read_at, damaged_at, end)
    following = [] if damaged is None else [damaged_at + damaged.header.size_bytes]
    for tried, position in enumerate(chain(following, known), 1):
        if tried % _TRIES_PER_STEP == 0:
            yield
        found = batch_at(read_at, position, end)
        if found is None or found.header.base_offset not in offsets:
            continue
        if found.header.last_offset not in offsets:
            continue
        if _fits_crc(_read(read_at, position, found.header.size_bytes), found.header):
            return found
    return None


def batch_at(read_at: ReadAt, position: int, end: int) -> Located | None:
    """The batch that begins at ``position``; None if its header cannot be, or it is not whole."""
    if end - position < HEADER_BYTES:
        return None
    try:
        header = read_header(_read(read_at, position, HEADER_BYTES))
    except CorruptRecordError:
        return None
    return Located(position, header) if position + header.size_bytes <= end else None


def sent_batches(
    data: Buffer, next_offset: int, *, may_have_gaps: bool, is_log_empty: bool = False
) -> list[BatchHeader]:
    """Return the headers of a leader's batches for a log that ends at ``next_offset``.

    A torn last batch is left out. An empty log takes a first batch that begins before
    ``next_offset`` and holds it: DeleteRecords may have cut the leader's log inside that batch.
    Batches beyond what one segment can hold are left out, too: they come with the next fetch.

    :raises CorruptRecordError: a wrong CRC, or offsets that do not continue the log.
    """
    headers: list[BatchHeader] = []
    begin = next_offset
    for position, header in batches(data):
        check_crc(data, position, header)
        is_gap = header.base_offset > next_offset and may_have_gaps
        is_cut = is_log_empty and not headers and header.base_offset < next_offset
        fits = is_gap or (is_cut and header.last_offset >= next_offset)
        if header.base_offset != next_offset and not fits:
            raise CorruptRecordError(
                f"the leader sent offset {header.base_offset}, the log ends at {next_offset}"
            )
        begin = min(begin, header.base_offset)
        if header.next_offset > begin + LARGEST_RELATIVE_OFFSET:
            if headers:
                break
            raise CorruptRecordError(
                f"the leader sent offset {header.last_offset}, the log ends at {next_offset}: "
                "more than a segment can hold lies between"
            )
        headers.append(header)
        next_offset = header.next_offset
    return headers


def require_sound(data: Buffer, known: int, gaps_below: int | None = None) -> None:
    """Check that ``data`` is whole, sound batches that follow one another.

    The CRC does not cover offsets. So ``known`` says where the first batch belongs: it is its last
    offset or the offset before it. ``gaps_below`` as in :func:`sound_batches`.

    :raises CorruptRecordError: if not.
    """
    end, next_offset = 0, known + 1
    for position, header in batches(data):
        if position > 0 or header.last_offset != known:
            _require_next(header, next_offset, gaps_below)
        check_crc(data, position, header)
        end, next_offset = position + header.size_bytes, header.next_offset
    if end != len(data):
        raise CorruptRecordError(f"{len(data) - end} bytes before {next_offset} are no batch")


def walk_to(read_at: ReadAt, position: int, limit: int, offset: int) -> Located | None:
    """The first batch from ``position`` on that ends with or after ``offset``."""
    block, begin = _EMPTY, position
    while position < limit:
        if position - begin + HEADER_BYTES > len(block):
            block, begin = _block(read_at, position, limit), position
        header = read_header(block, position - begin)
        if header.last_offset >= offset:
            return Located(position, header)
        position += header.size_bytes
    return None


def located_from(read_at: ReadAt, position: int, limit: int) -> Iterator[Located]:
    """Yield the batches that begin from ``position`` up to ``limit``; only headers are read.

    :raises CorruptRecordError: what follows is no batch.
    :raises WouldWait: the bytes end within a header.
    """
    block, begin = _EMPTY, position
    while position < limit:
        if position - begin + HEADER_BYTES > len(block):
            block, begin = _block(read_at, position, limit), position
        header = read_header(block, position - begin)
        yield Located(position, header)
        position += header.size_bytes


def last_end(read_at: ReadAt, position: int, limit: int, max_offset: int) -> int:
    """Where the last batch ends that begins at ``position`` or later, and fits both limits."""
    block, begin = _EMPTY, position
    while position + HEADER_BYTES <= limit:
        if position - begin + HEADER_BYTES > len(block):
            block, begin = _block(read_at, position, limit), position
        header = read_header(block, position - begin)
        if header.last_offset >= max_offset or position + header.size_bytes > limit:
            break
        position += header.size_bytes
    return position


def _block(read_at: ReadAt, position: int, limit: int) -> memoryview:
    data = read_at(position, min(_BLOCK_BYTES, limit - position))
    if data is None or len(data) < HEADER_BYTES:
        raise WouldWait
    return memoryview(data)


def _require_next(header: BatchHeader, next_offset: int, gaps_below: int | None) -> None:
    if header.base_offset == next_offset:
        return
    is_gap = gaps_below is not None and header.last_offset < gaps_below
    if not is_gap or header.base_offset < next_offset:
        raise CorruptRecordError(f"offset {header.base_offset} where {next_offset} is next")


def _read(read_at: ReadAt, position: int, size: int) -> Buffer:
    data = read_at(position, size)
    assert data is not None, "only readers that may wait walk"
    return data


def _fits_crc(data: Buffer, header: BatchHeader) -> bool:
    try:
        check_crc(data, 0, header)
    except CorruptRecordError:
        return False
    return True
