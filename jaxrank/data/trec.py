"""TREC qrels and runs, joined on (query, document).

A block's document ids are dropped as soon as it is joined, so a run that is grouped by query needs about 12 bytes a
line, however long it is.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions when it is imported

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int

from jaxrank.data._files import DataError, Path, Watch, malformed
from jaxrank.data._groups import Group, brought_together, grouped, refuse_duplicates, scattered
from jaxrank.data._lists import BLOCK_ROWS, RankingLists, as_float32, in_blocks
from jaxrank.data._shares import WHOLE, Found, Reading, ScatteredError, Share
from jaxrank.data._tables import Layout, Strings, first_line

SCATTERED_LINES = 5_000_000  # a run that is not grouped by query is sorted in memory, up to this length
QRELS = Layout(("query", "iteration", "document", "grade"), "grade", words_after=False, infinite=False)
RUN = Layout(("query", "Q0", "document", "rank", "score", "tag"), "score", words_after=True, infinite=True)
RUN_WITHOUT_RANK = Layout(("query", "Q0", "document", "score", "tag"), "score", words_after=False, infinite=True)


@dataclass(frozen=True, eq=False)
class Qrels:
    """Judgements of a qrels file: for each query, its documents and their grades.

    Args:
      documents: the ids of the documents judged for each query.
      grades: their grades, in the same order.
    """

    documents: dict[str, Strings]
    grades: dict[str, Float32[np.ndarray, " documents"]]

    def __len__(self) -> int:
        return len(self.documents)


class MappedRun(NamedTuple):
    """What `map_run` made of the lists of a share; all queries, in the order of `read_run`; which are of the share."""

    parts: list[Any]
    queries: tuple[str, ...]
    owned: Bool[np.ndarray, " queries"]
    missing: tuple[str, ...]
    unjudged: tuple[str, ...]


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


def read_qrels(path: Path, *, watch: Watch | None = None) -> Qrels:
    """Reads a qrels file: query, iteration, document, grade, between any white space.

    Args:
      path: a text file, gzip or not. Grades may be fractions or negative.
      watch: called with `(lines, bytes, size)` as reading goes on: lines and bytes so far, and the file's size.

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
    group = brought_together(path, QRELS, watch=watch)
    refuse_duplicates(group, path, QRELS)
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
    read = map_run(lambda lists: lists, path, qrels, RunOptions(missing, order, precision), block_rows=None)
    return JudgedRun(read.parts[0], read.missing, read.unjudged)


class RunOptions(NamedTuple):
    """Those of `read_run`."""

    missing: Literal["count", "skip"] = "count"
    order: Literal["file", "id_descending"] = "file"
    precision: Literal["float32", "float64"] = "float64"


def map_run(
    use: Callable[[RankingLists], Any],
    path: Path,
    qrels: Qrels,
    options: RunOptions,
    *,
    share: Share = WHOLE,
    block_rows: int | None = BLOCK_ROWS,
    watch: Watch | None = None,
) -> MappedRun:
    """Applies `use` to the lists of `read_run`, some `block_rows` at a time, and keeps only what it gives."""
    layout = _run_layout(path)

    def mapped(groups: Callable[[Reading], Iterable[Group]]) -> MappedRun:
        answers = _Answers(qrels, options, Reading(path, share))
        lists = answers.joined(groups(answers.reading))
        parts = [use(_concatenated(block)) for block in in_blocks(lists, block_rows)]
        return MappedRun(parts, *answers.found)

    try:
        return mapped(lambda reading: grouped(reading, layout, watch))
    except ScatteredError:  # what was made so far is of parts of queries, and is dropped
        return mapped(lambda reading: scattered(reading, layout, SCATTERED_LINES, watch))


class _Answers:
    """A run that is being read: by what rules, and what is found in all of it, once it is read."""

    def __init__(self, qrels: Qrels, options: RunOptions, reading: Reading):
        self.qrels, self.options, self.reading = qrels, options, reading
        self.found: tuple = ()

    def joined(self, groups: Iterable[Group]) -> Iterator["_Joined"]:
        """The lists of the share, some queries at a time; those without an answer at the end."""
        try:
            for group in groups:
                refuse_duplicates(group, self.reading.path, RUN)
                own = group.select(np.array([query in self.qrels.documents for query in group.queries], bool))
                if own.queries:
                    yield _join(own, self.qrels, self.options)
        except (DataError, ScatteredError) as error:
            self.reading.agree(error)
        yield from self._unanswered(self.reading.agree())

    def _unanswered(self, run: Found) -> Iterator["_Joined"]:
        answered = set(run.queries)
        if len(answered) < len(run.queries):
            raise ScatteredError
        judged = np.array([query in self.qrels.documents for query in run.queries], bool)
        if not judged.any():
            raise DataError(_no_common_query(self.reading.path, run.queries, self.qrels))
        unjudged = tuple(query for query, known in zip(run.queries, judged, strict=True) if not known)
        queries = tuple(query for query, known in zip(run.queries, judged, strict=True) if known)
        missing = tuple(query for query in self.qrels.documents if query not in answered)
        added = missing if self.options.missing == "count" else ()
        owned = self.reading.share.owns(np.arange(len(added)))
        self.found = queries + added, np.concatenate([run.owned[judged], owned]), missing, unjudged
        if owned.any():
            yield _unanswered([query for query, own in zip(added, owned, strict=True) if own], self.qrels)


def _no_common_query(path: Path, queries: tuple[str, ...], qrels: Qrels) -> str:
    some = ", ".join(queries[:3]) or "none"
    return (
        f"{path}: no query of this run is judged (queries of the run: {some}; of the qrels: "
        f"{', '.join(list(qrels.documents)[:3])}); expected the qrels of the same topics, given first"
    )


# Joining. Whole queries at a time, as flat columns.


class _Joined(NamedTuple):
    queries: list[str]
    lengths: Int[np.ndarray, " lists"]
    labels: Float32[np.ndarray, " rows"]
    scores: Float32[np.ndarray, " rows"]


def _concatenated(parts: list[_Joined]) -> RankingLists:
    queries = tuple(query for part in parts for query in part.queries)
    lengths, labels, scores = (np.concatenate(columns) for columns in list(zip(*parts, strict=True))[1:])
    return RankingLists(queries, lengths, labels, scores)


def _join(group: Group, qrels: Qrels, options: RunOptions) -> _Joined:
    import pyarrow

    judged = pyarrow.concat_arrays([qrels.documents[query] for query in group.queries]).dictionary_encode()
    grades = np.concatenate([qrels.grades[query] for query in group.queries])
    owners = np.repeat(np.arange(len(group.queries)), [len(qrels.documents[query]) for query in group.queries])
    row = _rows_of(owners, judged, group)
    labels = np.zeros(len(group.numbers), np.float32)
    labels[row[row >= 0]] = grades[row >= 0]
    exact = options.precision == "float64"
    scores = as_float32(group.numbers, group.lengths) if exact else group.numbers.astype(np.float32)
    if options.order == "id_descending":
        rows = _by_document_descending(group)
        labels, scores = labels[rows], scores[rows]
    left = (row < 0) & (grades > 0)
    return _with_unretrieved(_Joined(group.queries, group.lengths, labels, scores), owners[left], grades[left])


def _rows_of(owners: Int[np.ndarray, " judged"], judged: Strings, group: Group) -> Int[np.ndarray, " judged"]:
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


def _by_document_descending(group: Group) -> Int[np.ndarray, " rows"]:
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
