"""A DataFrame of Spark as a map-style dataset: written once as Parquet, and read by row by the workers.

In: a folder of Parquet files. Out: item i is the row i as a dictionary, in the order of the files' names. A worker reads the row
group that holds the row, and keeps the last ones that it has read. Nothing is read twice that fits in `cache_bytes`.
"""

import bisect
import itertools
import os
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from lockstep import _errors
from lockstep._errors import UsageError

_CACHE_BYTES = 256 << 20
_GROUP_BYTES = 1 << 20  # of a row group: what a worker reads for one row


def parquet(df: Any, path: str | os.PathLike[str], *, cache_bytes: int = _CACHE_BYTES) -> "Rows":
    """Writes the DataFrame to a new folder that driver and executors share, and returns its rows as a dataset for a DataLoader."""
    _errors.end_with_one_line()
    where = _absolute(path)
    try:
        df.write.option("parquet.block.size", _GROUP_BYTES).parquet(where)
    except Exception as error:
        if "PATH_ALREADY_EXISTS" in str(error):
            raise UsageError(f"{where} is there already: lockstep.spark.rows({where!r}) opens it") from None
        raise
    return rows(where, cache_bytes=cache_bytes)


def rows(path: str | os.PathLike[str], *, cache_bytes: int = _CACHE_BYTES) -> "Rows":
    """The rows of a folder that `parquet` has written. The driver reads the files' footers, so that all workers agree on them."""
    _errors.end_with_one_line()
    if isinstance(cache_bytes, bool) or not isinstance(cache_bytes, int) or cache_bytes < 0:
        raise UsageError(f"cache_bytes: {cache_bytes!r} is not a whole number from 0 on")
    try:
        import pyarrow.fs
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise UsageError("a DataFrame's rows are read with pyarrow, which this Python has not: pip install pyarrow") from None
    where = _absolute(path)
    system, inner = pyarrow.fs.FileSystem.from_uri(where.removeprefix("file://"))
    try:
        found = system.get_file_info(pyarrow.fs.FileSelector(inner))
    except OSError as error:
        raise UsageError(f"{where}: {error}; give a folder that the driver and all executors reach by this name") from None
    pieces = []
    for file in sorted(info.path for info in found if info.base_name.endswith(".parquet")):
        metadata = pyarrow.parquet.read_metadata(file, filesystem=system)
        pieces += [_Piece(file, group, metadata.row_group(group).num_rows) for group in range(metadata.num_row_groups)]
    if not pieces:
        raise UsageError(f"{where} has no rows in Parquet files")
    return Rows(where, pieces, cache_bytes)


def _absolute(path: str | os.PathLike[str]) -> str:
    """Spark, the driver's Python and the workers have different working directories."""
    text = os.fspath(path)
    return text if "://" in text or text.startswith("file:") else f"file://{os.path.abspath(text)}"


@dataclass(frozen=True)
class _Piece:
    """A row group."""

    file: str
    group: int
    rows: int


class Rows:
    """The rows of a DataFrame: `len`, and item i as a dictionary from column to value. Numbers and lists of numbers are NumPy's,
    with the column's type. A null is an error: fill or drop it in the DataFrame."""

    def __init__(self, path: str, pieces: list[_Piece], cache_bytes: int) -> None:
        self.path = path
        self._pieces, self._cache_bytes = pieces, cache_bytes
        self._ends = list(itertools.accumulate(piece.rows for piece in pieces))
        self._forget()

    def _forget(self) -> None:
        self._system: Any = None
        self._read: OrderedDict[int, tuple[dict[str, Any], int]] = OrderedDict()  # columns and bytes of a row group
        self._bytes = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_system": None, "_read": OrderedDict(), "_bytes": 0}

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> dict[str, Any]:
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        number = bisect.bisect_right(self._ends, at)
        columns = self._columns(number)
        row = at - (self._ends[number] - self._pieces[number].rows)
        return {name: values[row] for name, values in columns.items()}

    def _columns(self, number: int) -> dict[str, Any]:
        if number in self._read:
            self._read.move_to_end(number)
            return self._read[number][0]
        import pyarrow.fs
        import pyarrow.parquet

        if self._system is None:
            self._system, _ = pyarrow.fs.FileSystem.from_uri(self.path.removeprefix("file://"))
        piece = self._pieces[number]
        try:
            with pyarrow.parquet.ParquetFile(piece.file, filesystem=self._system) as file:
                # Without threads, because a loader process may be a fork of one that had them.
                table = file.read_row_group(piece.group, use_threads=False)
        except FileNotFoundError:
            raise UsageError(f"{piece.file} is not there: {self.path} must stay, and all executors must reach it") from None
        if table.num_rows != piece.rows:
            raise UsageError(f"{piece.file} has changed since the job began")
        columns = {name: self._values(name, table.column(name).combine_chunks()) for name in table.column_names}
        self._read[number] = columns, table.nbytes
        self._bytes += table.nbytes
        while self._bytes > self._cache_bytes and len(self._read) > 1:
            _, (_, freed) = self._read.popitem(last=False)
            self._bytes -= freed
        return columns

    def _values(self, name: str, column: Any) -> Any:
        """By row."""
        import pyarrow

        kind = column.type
        if column.null_count:
            raise UsageError(f"column {name} of {self.path} has nulls: fill or drop them in the DataFrame (df.na)")
        if pyarrow.types.is_list(kind) and _is_number(kind.value_type):
            if column.values.null_count:
                raise UsageError(f"column {name} of {self.path} has nulls in its lists: fill them in the DataFrame")
            values, ends = column.values.to_numpy(zero_copy_only=False), column.offsets.to_numpy()
            # Copies: what a row is read into may be written to.
            return [values[first:end].copy() for first, end in itertools.pairwise(ends)]
        if _is_number(kind):
            return column.to_numpy(zero_copy_only=False)
        return column.to_pylist()


def _is_number(kind: Any) -> bool:
    import pyarrow.types

    return bool(pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_boolean(kind))
