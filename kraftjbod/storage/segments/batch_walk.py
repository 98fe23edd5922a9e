"""PURE. Walking over the batches of one segment: finding sound batches and damage.

* A *sound* batch has a plausible header, starts at the expected offset, is complete and, if
  requested, matches its CRC.
* A log without compaction has no gaps, so a batch with a later offset than expected is not sound.
  If compaction may have removed records, such a batch is sound if it ends below a given offset.
* Damage extends from the first unsound batch to the next sound one.

A function of type ``ReadAt`` supplies the bytes. The callers decide what to do about damage.
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

#: Returns bytes for ``(position, size)``. Fewer bytes mean the end of the file or of the trusted
#: range. None means that the bytes must be read in another way.
ReadAt = Callable[[int, int], Buffer | None]

#: Called with the number of bytes that were read since the last call.
OnProgress = Callable[[int], None]

#: Largest span of offsets in a segment: indexes store relative offsets in 32 bits.
LARGEST_RELATIVE_OFFSET: Final = 2**31 - 1
WALK_BYTES: Final = 4 * 1024 * 1024
#: Size of a read of headers. An index entry is seldom further away.
_BLOCK_BYTES: Final = 4096
#: Positions that are tried per step in the search for a sound batch. Each may cost a disk seek.
_TRIES_PER_STEP: Final = 16
_EMPTY: Final = memoryview(b"")


class WouldWait(Exception):
    """The bytes are not in memory, or are too few for a header, so the caller has to read in
    another way.
    """


def no_progress(_size_bytes: int) -> None:
    """Default for callers that ignore progress."""


class Damage(NamedTuple):
    """Part of a log without sound batches: the offsets from ``offset`` to below ``next_offset``.
    ``position`` is its start in the segment's file.
    """

    offset: int
    #: Offset of the first sound batch after the damage.
    next_offset: int
    position: int


class Located(NamedTuple):
    """A batch and its position in the file."""

    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        """Position of the next batch in the file."""
        return self.position + self.header.size_bytes

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.header.next_offset


class Sound(Protocol):
    """Interface of one sound batch (:class:`Located`) or several consecutive ones
    (``SoundRun``).
    """

    @property
    def end(self) -> int:
        """Position of the next batch in the file."""
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
    """Yield the batches from ``position`` on, until the first that is not sound or extends beyond
    ``end``.

    The batch at ``position`` has to start at ``next_offset``.

    :param gaps_below: allows gaps: a batch may start later, if it ends below this offset. None
        allows no gaps.
    :param on_progress: called with the number of bytes read since the last call, after each
        ``chunk_bytes`` or larger batch.
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
            return  # The segment or the file ends inside this batch.


def walk_around_damage(
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
) -> Iterator[Located | Damage | None]:
    """Yield the sound batches of a segment, and the damage between and after them, in order.

    Missing offsets before ``end_offset``, the expected end of the segment, count as damage too. The
    generator yields None after some failed tries to find a sound batch, so that a caller can work
    in steps.

    :param known: returns the positions after a position where batches start, according to an index.
    :param gaps_below: as in :func:`sound_batches`.
    """
    return walk_sound_around_damage(
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


def walk_sound_around_damage(
    sound_from: Callable[[int, int], Iterator[S]],
    read_at: ReadAt,
    *,
    end: int,
    begin_offset: int,
    end_offset: int,
    known: Callable[[int], Iterable[int]],
) -> Iterator[S | Damage | None]:
    """Yield as :func:`walk_around_damage`, for any kind of walk over sound batches.

    :param sound_from: returns an iterator over sound batches from a position and the offset
        expected there. The iterator ends before the first unsound batch.
    """
    position, next_offset = 0, begin_offset
    limit = min(end_offset, begin_offset + LARGEST_RELATIVE_OFFSET + 1)
    while True:
        for sound in sound_from(position, next_offset):
            yield sound
            position, next_offset = sound.end, sound.next_offset
        if position >= end:
            if next_offset < end_offset:
                yield Damage(next_offset, end_offset, position)  # The end, or all, is lost.
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
    """Return the first sound batch after the damage whose offsets are all in ``offsets``; None
    without one.

    The first try is the end of the damaged batch according to its header, followed by the ``known``
    positions. The offsets must be checked because the CRC does not cover them. Yields None after
    every 16 tries.
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
    """Return the batch at ``position``; None if its header is implausible or it extends beyond
    ``end``.
    """
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
    """Return the headers of batches from a leader, for a log that ends at ``next_offset``.

    The result omits an incomplete last batch. It also omits batches beyond the offset span of one
    segment, which the next fetch returns again.

    :param is_log_empty: accept a first batch that starts before ``next_offset`` and contains it:
        DeleteRecords may have moved the leader's log start inside that batch.
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
                "the gap is larger than a segment can hold"
            )
        headers.append(header)
        next_offset = header.next_offset
    return headers


def require_sound(data: Buffer, known: int, gaps_below: int | None = None) -> None:
    """Raise an error unless ``data`` consists of complete, sound, consecutive batches.

    :param known: last offset of the first batch, or the offset before it. Needed because the CRC
        does not cover offsets.
    :param gaps_below: as in :func:`sound_batches`.
    :raises CorruptRecordError: ``data`` contains anything else.
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
    """Return the first batch from ``position`` on whose last offset is at least ``offset``.

    Returns None if no batch that starts below ``limit`` has it.

    :raises CorruptRecordError: the next bytes are not a batch.
    :raises WouldWait: the bytes end inside a header.
    """
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
    """Yield the batches from the one at ``position`` to the last that starts before ``limit``.
    Reads only headers.

    :raises CorruptRecordError: the next bytes are not a batch.
    :raises WouldWait: the bytes end inside a header.
    """
    block, begin = _EMPTY, position
    while position < limit:
        if position - begin + HEADER_BYTES > len(block):
            block, begin = _block(read_at, position, limit), position
        header = read_header(block, position - begin)
        yield Located(position, header)
        position += header.size_bytes


def last_end(read_at: ReadAt, position: int, limit: int, max_offset: int) -> int:
    """Return the end position of the last batch that ends at or before ``limit`` and below
    ``max_offset``.

    Returns ``position``, where the walk starts, if no batch does.

    :raises CorruptRecordError: the next bytes are not a batch.
    :raises WouldWait: the bytes end inside a header.
    """
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
