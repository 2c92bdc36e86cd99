"""Rows of a TREC file, brought together by query: whole queries at a time where the file has them so."""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions when it is imported

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int

from jaxrank.data import _tables
from jaxrank.data._files import DataError, Path, Watch, malformed, numbered_lines
from jaxrank.data._shares import KeyCut, Reading, ScatteredError
from jaxrank.data._tables import Layout, Rows, Strings, read_block, read_rows


@dataclass(frozen=True, eq=False)
class Group:
    """Rows of some queries, grouped by query."""

    queries: list[str]
    lengths: Int[np.ndarray, " lists"]
    documents: Strings
    numbers: Float64[np.ndarray, " rows"]

    @cached_property
    def codes(self) -> Strings:
        """The documents as indices into a dictionary of the different ones."""
        return self.documents.dictionary_encode()

    @property
    def offsets(self) -> Int[np.ndarray, " offsets"]:
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)

    @cached_property
    def owners(self) -> Int[np.ndarray, " rows"]:
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def select(self, keep: Bool[np.ndarray, " lists"]) -> "Group":
        if keep.all():
            return self
        import pyarrow

        rows = np.repeat(keep, self.lengths)
        queries = [query for query, kept in zip(self.queries, keep, strict=True) if kept]
        return Group(queries, self.lengths[keep], self.documents.filter(pyarrow.array(rows)), self.numbers[rows])


def grouped(reading: Reading, layout: Layout, watch: Watch | None = None) -> Iterator[Group]:
    """The queries of a share, in bounded memory."""
    seen: set[str] = set()
    for block, own in reading.blocks(KeyCut(_query), _tables.BLOCK_BYTES, watch):
        rows = read_block(reading.path, layout, block.first, block.text) if own else None
        if rows is not None and len(rows.numbers):
            group = _contiguous(rows, seen)
            reading.found([block.number] * len(group.queries), group.queries)
            yield group


def _query(line: bytes) -> bytes | None:
    return next(iter(line.split(None, 1)), None)


def _contiguous(rows: Rows, seen: set[str]) -> Group:
    import pyarrow.compute

    runs = pyarrow.compute.run_end_encode(rows.queries)
    queries = runs.values.to_pylist()
    before = len(seen)
    seen.update(queries)
    if len(seen) < before + len(queries):
        raise ScatteredError
    return Group(queries, np.diff(np.asarray(runs.run_ends), prepend=0), rows.documents, rows.numbers)


def scattered(reading: Reading, layout: Layout, limit: int, watch: Watch | None = None) -> Iterator[Group]:
    """The queries of a share of a file where their lines stand anywhere; each process reads all of it."""
    group = brought_together(reading.path, layout, limit, watch)
    owned = reading.share.owns(np.arange(len(group.queries)))
    own = group.select(owned)
    reading.found(np.flatnonzero(owned).tolist(), own.queries)
    yield own


def brought_together(path: Path, layout: Layout, limit: int | None = None, watch: Watch | None = None) -> Group:
    """All lines, brought together by query; the queries in the order in which they first appear."""
    import pyarrow

    parts, count = [], 0
    for rows in read_rows(path, layout, watch):
        parts.append(rows)
        count += len(rows.numbers)
        if limit is not None and count > limit:
            raise DataError(
                f"{path}: the lines of a query are scattered, and there are more than {limit:,} lines to bring "
                f"together in memory; sort the file by query first: sort -s -k1,1 {path}"
            )
    rows = _joined_rows(parts)
    codes = rows.queries.dictionary_encode()
    owners = np.asarray(codes.indices)
    order = np.argsort(owners, kind="stable")
    return Group(
        codes.dictionary.to_pylist(),
        np.bincount(owners),
        rows.documents.take(pyarrow.array(order)),
        rows.numbers[order],
    )


def _joined_rows(parts: list[Rows]) -> Rows:
    import pyarrow

    queries, documents, numbers = zip(*parts, strict=True)
    return Rows(pyarrow.concat_arrays(queries), pyarrow.concat_arrays(documents), np.concatenate(numbers))


def refuse_duplicates(group: Group, path: Path, layout: Layout) -> None:
    codes = group.codes
    if len(codes.dictionary) == len(codes):
        return
    keys = group.owners * len(codes.dictionary) + np.asarray(codes.indices)
    ordered = np.sort(keys)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        row = np.flatnonzero(keys == twice[0])[0]
        raise _duplicate(path, group.queries[group.owners[row]], codes[int(row)].as_py(), layout)


def _duplicate(path: Path, query: str, document: str, layout: Layout) -> DataError:
    lines = [number for number, line in numbered_lines(path) if line.split()[:3:2] == [query, document]]
    return malformed(
        path,
        lines[1],
        f"document {document!r} of query {query!r} for the second time (first on line {lines[0]})",
        f"each document once a query, with one {layout.number}",
    )
