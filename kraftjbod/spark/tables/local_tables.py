"""WIRE. Tables that are recomputed in generations, on this machine and without Spark.

Each generation is a folder. Its success marker is written last, as Spark does. Until then readers
(stored_tables.py) use the previous generation. They read the generations of Spark alike.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

#: Prefix of the folder of a generation, before its number.
GENERATION: Final = "generation="
#: Name of the marker that Spark writes when a folder is complete.
COMPLETE: Final = "_SUCCESS"
#: Number of generations kept, including the newest.
KEPT: Final = 3


def local_folder(tables: str) -> Path | None:
    """Return the local path of the folder ``tables``; None for a URI of another file system."""
    parts = urlsplit(tables)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(tables)


def publish_rows(rows: Iterable[Sequence[Any]], schema: Mapping[str, str], table: Path) -> None:
    """Write ``rows`` as the newest generation of ``table``; keep the newest ``KEPT`` ones.

    :param schema: Arrow's names of types by column, in the order of the rows' fields.
    :raises ModuleNotFoundError: pyarrow is missing, and nothing was changed.
    """
    # Imported here, because plans are also made without it.
    import pyarrow as pa
    import pyarrow.parquet

    named = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in schema.items()])
    numbers = generations(path.name for path in table.glob(f"{GENERATION}*"))
    folder = table / f"{GENERATION}{max(numbers, default=0) + 1}"
    folder.mkdir(parents=True)
    columns = list(zip(*rows, strict=True)) or [()] * len(named)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, named, strict=True)]
    pa.parquet.write_table(pa.table(arrays, schema=named), folder / "part-00000.parquet")
    (folder / COMPLETE).touch()
    for number in numbers[: -(KEPT - 1)]:
        shutil.rmtree(table / f"{GENERATION}{number}")


def generations(names: Iterable[str]) -> list[int]:
    """Return the numbers of the generations among ``names``, ascending; other names are ignored."""
    numbers = (name.removeprefix(GENERATION) for name in names if "=" in name)
    return sorted(int(number) for number in numbers if number.isdigit())
