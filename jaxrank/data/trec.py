"""TREC qrels and runs, joined on (query, document).

A block's document ids are dropped as soon as it is joined, so a run that is grouped by query needs about 12 bytes a
line, however long it is.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions when it is imported

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int

from jaxrank.data._files import DataError, Path, malformed, numbered_lines
from jaxrank.data._lists import RankingLists, as_float32
from jaxrank.data._tables import Layout, Rows, Strings, first_line, read_rows

SCATTERED_LINES = 5_000_000  # a run that is not grouped by query is sorted in memory, up to this length
QRELS = Layout(("query", "iteration", "document", "grade"), "grade", words_after=False, infinite=False)
RUN = Layout(("query", "Q0", "document", "rank", "score", "tag"), "score", words_after=True, infinite=True)
RUN_WITHOUT_RANK = Layout(("query", "Q0", "document", "score", "tag"), "score", words_after=False, infinite=True)


@dataclass(frozen=True, eq=False)
class Qrels:
    """Judgements of a qrels file: for each query, its documents and their grades."""

    documents: dict[str, Strings]
    grades: dict[str, Float32[np.ndarray, " documents"]]

    def __len__(self) -> int:
        return len(self.documents)


class JudgedRun(NamedTuple):
    """A run with its judgements.

    Args:
      lists: one list a query, the queries in the order of the run, the missing ones (if they count) at the end.
      missing: judged queries that the run does not answer.
      unjudged: queries of the run that have no judgements; they are not in `lists`.
    """

    lists: RankingLists
    missing: tuple[str, ...]
    unjudged: tuple[str, ...]


def read_qrels(path: Path) -> Qrels:
    """Reads a qrels file: query, iteration, document, grade, between any white space.

    Args:
      path: a text file, gzip or not. Grades may be fractions or negative.

    Returns:
      The judgements by query.

    Raises:
      DataError: a malformed line, or a document judged twice for a query, by file and line.

    Example:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp(), "qrels")
      >>> _ = path.write_text("q1 0 d1 2\\nq1 0 d2 0\\n")
      >>> read_qrels(path).grades["q1"].tolist()
      [2.0, 0.0]

    References:
      https://trec.nist.gov/data/qrels_eng/
    """
    group = _sorted(path, QRELS)
    _refuse_duplicates(group, path, QRELS)
    grades = group.numbers.astype(np.float32)
    bounds = list(zip(group.queries, group.offsets[:-1].tolist(), group.offsets[1:].tolist(), strict=True))
    return Qrels(
        {query: group.documents[start:stop] for query, start, stop in bounds},
        {query: grades[start:stop] for query, start, stop in bounds},
    )


def read_run(
    path: Path,
    qrels: Qrels,
    *,
    missing: Literal["count", "skip"] = "count",
    order: Literal["file", "id_descending"] = "file",
    precision: Literal["float32", "float64"] = "float64",
) -> JudgedRun:
    """Reads a run and joins it with judgements.

    Documents without a judgement get label 0. Relevant documents that were not retrieved get score `-inf`: no rank,
    but a place in the ideal order. Lines are `query Q0 document rank score tag` between any white space; the rank is
    not read and may be left out, and words after the tag are ignored.

    Args:
      path: a text file, gzip or not. Grouped by query it is read in bounded memory, else it is sorted, which
        takes more.
      qrels: what `read_qrels` returned.
      missing: whether judged queries that the run does not answer count as lists with nothing retrieved.
      order: order of a list's documents, which decides ties with `ties="stable"`: as in the file, or by document id
        descending, as trec_eval does.
      precision: what scores are rounded to, which decides what is tied. The lists hold float32; where that would tie
        scores that differ in float64, a list holds ranks instead.

    Returns:
      The lists, and the queries in one file only.

    Raises:
      DataError: a malformed line, a NaN score or a document retrieved twice for a query, by file and line; no query
        in common.

    Example:
      >>> import pathlib, tempfile
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> _ = (folder / "qrels").write_text("q1 0 d1 2\\nq1 0 d2 1\\nq2 0 d1 1\\n")
      >>> _ = (folder / "run").write_text("q1 Q0 d2 1 0.5 me\\nq1 Q0 d9 2 0.1 me\\n")
      >>> run = read_run(folder / "run", read_qrels(folder / "qrels"), missing="skip")
      >>> run.lists.labels.tolist(), run.lists.scores.tolist(), run.missing
      ([1.0, 0.0, 2.0], [0.5, 0.10000000149011612, -inf], ('q2',))

    References:
      https://github.com/usnistgov/trec_eval
    """
    layout = _run_layout(path)
    try:
        parts, unjudged = _judged(_grouped(path, layout), path, qrels, order, precision)
    except _ScatteredError:
        parts, unjudged = _judged([_sorted(path, layout, SCATTERED_LINES)], path, qrels, order, precision)
    answered = {query for part in parts for query in part.queries}
    if not answered:
        raise DataError(_no_common_query(path, unjudged, qrels))
    left = tuple(query for query in qrels.documents if query not in answered)
    if missing == "count":
        parts.append(_unanswered(left, qrels))
    return JudgedRun(_concatenated(parts), left, tuple(unjudged))


def _judged(
    groups: Iterable["_Group"], path: Path, qrels: Qrels, order: str, precision: str
) -> "tuple[list[_Joined], list[str]]":
    parts, unjudged = [], []
    for group in groups:
        _refuse_duplicates(group, path, RUN)
        unjudged += [query for query in group.queries if query not in qrels.documents]
        judged = group.select(np.array([query in qrels.documents for query in group.queries]))
        if judged.queries:
            parts.append(_join(judged, qrels, order, precision))
    return parts, unjudged


def _no_common_query(path: Path, queries: list[str], qrels: Qrels) -> str:
    some = ", ".join(queries[:3]) or "none"
    return (
        f"{path}: no query of this run is judged (queries of the run: {some}; of the qrels: "
        f"{', '.join(list(qrels.documents)[:3])}); expected the qrels of the same topics, given first"
    )


# Joining. Whole queries at a time, as flat columns.


@dataclass(frozen=True, eq=False)
class _Group:
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

    def select(self, keep: Bool[np.ndarray, " lists"]) -> "_Group":
        if keep.all():
            return self
        import pyarrow

        rows = np.repeat(keep, self.lengths)
        queries = [query for query, kept in zip(self.queries, keep, strict=True) if kept]
        return _Group(queries, self.lengths[keep], self.documents.filter(pyarrow.array(rows)), self.numbers[rows])


class _Joined(NamedTuple):
    queries: list[str]
    lengths: Int[np.ndarray, " lists"]
    labels: Float32[np.ndarray, " rows"]
    scores: Float32[np.ndarray, " rows"]


def _concatenated(parts: list[_Joined]) -> RankingLists:
    queries = tuple(query for part in parts for query in part.queries)
    lengths, labels, scores = (np.concatenate(columns) for columns in list(zip(*parts, strict=True))[1:])
    return RankingLists(queries, lengths, labels, scores)


def _refuse_duplicates(group: _Group, path: Path, layout: Layout) -> None:
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


def _join(group: _Group, qrels: Qrels, order: str, precision: str) -> _Joined:
    import pyarrow

    judged = pyarrow.concat_arrays([qrels.documents[query] for query in group.queries]).dictionary_encode()
    grades = np.concatenate([qrels.grades[query] for query in group.queries])
    owners = np.repeat(np.arange(len(group.queries)), [len(qrels.documents[query]) for query in group.queries])
    row = _rows_of(owners, judged, group)
    labels = np.zeros(len(group.numbers), np.float32)
    labels[row[row >= 0]] = grades[row >= 0]
    exact = precision == "float64"
    scores = as_float32(group.numbers, group.lengths) if exact else group.numbers.astype(np.float32)
    if order == "id_descending":
        rows = _by_document_descending(group)
        labels, scores = labels[rows], scores[rows]
    left = (row < 0) & (grades > 0)
    return _with_unretrieved(_Joined(group.queries, group.lengths, labels, scores), owners[left], grades[left])


def _rows_of(owners: Int[np.ndarray, " judged"], judged: Strings, group: _Group) -> Int[np.ndarray, " judged"]:
    """The group's row of each judged document, -1 where it was not retrieved."""
    import pyarrow.compute

    found = pyarrow.compute.index_in(group.codes.dictionary, judged.dictionary).fill_null(-1)
    codes = np.asarray(found)[np.asarray(group.codes.indices)]
    rows = np.flatnonzero(codes >= 0)  # only documents judged for some query: few, so sorting them costs little
    if not len(rows):
        return np.full(len(owners), -1)
    size = len(judged.dictionary)
    keys, wanted = group.owners[rows] * size + codes[rows], owners * size + np.asarray(judged.indices)
    order = np.argsort(keys)
    place = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(rows) - 1)
    return np.where(keys[order[place]] == wanted, rows[order[place]], -1)


def _by_document_descending(group: _Group) -> Int[np.ndarray, " rows"]:
    import pyarrow.compute

    documents = group.codes.dictionary
    rank = np.empty(len(documents), np.int64)
    rank[np.asarray(pyarrow.compute.sort_indices(documents, sort_keys=[("", "descending")]))] = np.arange(
        len(documents)
    )
    return np.lexsort((rank[np.asarray(group.codes.indices)], group.owners))


def _with_unretrieved(
    joined: _Joined, owners: Int[np.ndarray, " left"], grades: Float32[np.ndarray, " left"]
) -> _Joined:
    every = np.concatenate([np.repeat(np.arange(len(joined.lengths)), joined.lengths), owners])
    rows = np.argsort(every, kind="stable")
    labels = np.concatenate([joined.labels, grades])[rows]
    scores = np.concatenate([joined.scores, np.full(len(grades), -np.inf, np.float32)])[rows]
    return _Joined(joined.queries, joined.lengths + np.bincount(owners, minlength=len(joined.lengths)), labels, scores)


def _unanswered(queries: Iterable[str], qrels: Qrels) -> _Joined:
    names = list(queries)
    grades = [qrels.grades[query][qrels.grades[query] > 0] for query in names]
    labels = np.concatenate([np.zeros(0, np.float32), *grades])
    lengths = np.array([len(values) for values in grades], np.int64)
    return _Joined(names, lengths, labels, np.full(len(labels), -np.inf, np.float32))


# Grouping. Blocks end anywhere; groups hold whole queries.


class _ScatteredError(Exception):
    """A query came back after other queries."""


def _grouped(path: Path, layout: Layout) -> Iterator[_Group]:
    """Whole queries, in bounded memory."""
    open_query: list[Rows] = []  # its rows may go on in the next block
    seen: set[str] = set()
    for rows in read_rows(path, layout):
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


def _contiguous(parts: list[Rows], seen: set[str]) -> _Group:
    import pyarrow.compute

    rows = _joined_rows(parts)
    runs = pyarrow.compute.run_end_encode(rows.queries)
    queries = runs.values.to_pylist()
    before = len(seen)
    seen.update(queries)
    if len(seen) < before + len(queries):
        raise _ScatteredError
    return _Group(queries, np.diff(np.asarray(runs.run_ends), prepend=0), rows.documents, rows.numbers)


def _sorted(path: Path, layout: Layout, limit: int | None = None) -> _Group:
    """All lines, brought together by query; the queries in the order in which they first appear."""
    import pyarrow

    parts, count = [], 0
    for rows in read_rows(path, layout):
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
    return _Group(
        codes.dictionary.to_pylist(),
        np.bincount(owners),
        rows.documents.take(pyarrow.array(order)),
        rows.numbers[order],
    )


def _joined_rows(parts: list[Rows]) -> Rows:
    import pyarrow

    queries, documents, numbers = zip(*parts, strict=True)
    return Rows(pyarrow.concat_arrays(queries), pyarrow.concat_arrays(documents), np.concatenate(numbers))


def _run_layout(path: Path) -> Layout:
    number, fields = first_line(path, RUN)
    if len(fields) != len(RUN_WITHOUT_RANK.columns):
        return RUN
    if _is_number(fields[-1]):
        found = f"5 columns, the last a number, so the rank or the tag is missing: {' '.join(fields)!r}"
        raise malformed(path, number, found, RUN.expected)
    return RUN_WITHOUT_RANK


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
