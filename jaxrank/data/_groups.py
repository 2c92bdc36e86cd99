"""Rows of a TREC file, brought together by query: whole queries at a time where the file has them so."""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions when it is imported

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int

from jaxrank.data._files import DataError, Path, Watch, malformed, numbered_lines
from jaxrank.data._tables import Layout, Rows, Strings, read_rows


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


class ScatteredError(Exception):
    """A query came back after other queries."""


def grouped(path: Path, layout: Layout, watch: Watch | None = None) -> Iterator[Group]:
    """Whole queries, in bounded memory."""
    open_query: list[Rows] = []  # its rows may go on in the next block
    seen: set[str] = set()
    for rows in read_rows(path, layout, watch):
        cut = _last_query(rows)
        if cut == 0 and (not open_query or open_query[-1].queries[-1] == rows.queries[0]):
            open_query.append(rows)
            continue
        yield _contiguous([*open_query, Rows(*(column[:cut] for column in rows))], seen)
        open_query = [Rows(*(column[cut:] for column in rows))]
    yield _contiguous(open_query, seen)


def _last_query(rows: Rows) -> int:
    """The row where the last query's run of rows begins."""
    import pyarrow.compute

    ends = pyarrow.compute.run_end_encode(rows.queries).run_ends
    return ends[-2].as_py() if len(ends) > 1 else 0


def _contiguous(parts: list[Rows], seen: set[str]) -> "Group":
    import pyarrow.compute

    rows = _joined_rows(parts)
    runs = pyarrow.compute.run_end_encode(rows.queries)
    queries = runs.values.to_pylist()
    before = len(seen)
    seen.update(queries)
    if len(seen) < before + len(queries):
        raise ScatteredError
    return Group(queries, np.diff(np.asarray(runs.run_ends), prepend=0), rows.documents, rows.numbers)


def brought_together(path: Path, layout: Layout, limit: int | None = None, watch: Watch | None = None) -> "Group":
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
