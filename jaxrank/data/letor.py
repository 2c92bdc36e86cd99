"""Learning-to-rank files: SVMlight lines, with `qid:` or with group sizes in a file of their own."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from os import fspath
from os.path import exists
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int

from jaxrank.data._files import (
    DataError,
    NumberColumn,
    Path,
    Watch,
    malformed,
    number_blocks,
    read_numbers,
)
from jaxrank.data._lists import BLOCK_ROWS, WHOLE, RankingLists, Share, as_float32, in_blocks
from jaxrank.data._svmlight import EXPECTED, Rows, check_lines, data_lines, read_rows

MAX_FEATURES = 100_000  # features become a dense array; an index above this is a slip or another kind of data


def read_letor(
    path: Path,
    *,
    group: Path | None = None,
    scores: Path | None = None,
    features: bool = True,
    n_features: int | None = None,
    zero_based: bool = False,
) -> RankingLists:
    """Reads an SVMlight file: `label qid:query index:value ... # comment`, the lines of a query together.

    Args:
      path: a text file, gzip or not.
      group: a file with the number of rows of each query, a line each, for files without `qid:`. By default
        `path.query` or `path.group`, where there is one.
      scores: a file with the score of each row, a line each, such as another library's predictions.
      features: whether to keep the features, as a dense array in which features that are not given are 0.
      n_features: columns of the features, to have as many in every file; by default the largest index of this file.
      zero_based: whether indices count from 0; LETOR files count from 1.

    Returns:
      The lists, rows in the order of the file.

    Raises:
      DataError: a malformed line or a query in two places, by file and line; sizes or scores that do not fit the rows.

    Example:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp(), "train.txt")
      >>> _ = path.write_text("2 qid:7 1:0.5 3:1\\n0 qid:7 2:1\\n1 qid:9 1:1\\n")
      >>> lists = read_letor(path)
      >>> lists.queries, lists.lengths.tolist(), lists.features.tolist()[0]
      (('7', '9'), [2, 1], [0.5, 0.0, 1.0])

    References:
      https://www.microsoft.com/en-us/research/project/mslr/ and, for group sizes,
      https://lightgbm.readthedocs.io/en/stable/Parameters.html#query-data
    """
    options = LetorOptions(group, scores, features, n_features, zero_based)
    return map_letor(lambda lists: lists, path, options, block_rows=None).parts[0]


class LetorOptions(NamedTuple):
    """Those of `read_letor`."""

    group: Path | None = None
    scores: Path | None = None
    features: bool = True
    n_features: int | None = None
    zero_based: bool = False


class MappedLists(NamedTuple):
    """What `map_letor` made of the lists of a share, and the names of all queries."""

    parts: list[Any]
    queries: tuple[str, ...]


def map_letor(
    use: Callable[[RankingLists], Any],
    path: Path,
    options: LetorOptions,
    *,
    share: Share = WHOLE,
    block_rows: int | None = BLOCK_ROWS,
    watch: Watch | None = None,
) -> MappedLists:
    """Applies `use` to the lists of `read_letor`, some `block_rows` at a time, and keeps only what it gives."""
    queries: list[str] = []

    def own() -> Iterator[_Part]:
        for part in _parts(path, options, watch):
            owned = share.owns(np.arange(len(queries), len(queries) + len(part.queries)))
            queries.extend(part.queries)
            if owned.any():
                yield part.select(owned)

    parts = [use(_together(path, block)) for block in in_blocks(own(), block_rows)]
    return MappedLists(parts, tuple(queries))


def read_share(path: Path, options: LetorOptions, share: Share) -> RankingLists:
    """The lists of `read_letor` with features, those of other processes without rows; no more than these are held."""
    parts, queries = map_letor(lambda lists: lists, path, options, share=share, block_rows=None)
    lengths = np.zeros(len(queries), np.int64)
    if not parts:
        return RankingLists(queries, lengths, np.zeros(0, np.float32), features=np.zeros((0, 0), np.float32))
    lengths[share.index :: share.count] = parts[0].lengths
    return replace(parts[0], queries=queries, lengths=lengths)


class _Part(NamedTuple):
    """Some queries with all their rows."""

    queries: tuple[str, ...]
    lengths: Int[np.ndarray, " lists"]
    labels: Float32[np.ndarray, " rows"]
    scores: Float32[np.ndarray, " rows"] | None
    features: Any  # a sparse matrix, or None

    def select(self, keep: Bool[np.ndarray, " lists"]) -> "_Part":
        if keep.all():
            return self
        rows = np.repeat(keep, self.lengths)
        queries = tuple(query for query, kept in zip(self.queries, keep, strict=True) if kept)
        scores, features = (None if column is None else column[rows] for column in (self.scores, self.features))
        return _Part(queries, self.lengths[keep], self.labels[rows], scores, features)


def _together(path: Path, parts: list[_Part]) -> RankingLists:
    queries, lengths, labels, scores, features = zip(*parts, strict=True)
    return RankingLists(
        tuple(chain(*queries)),
        np.concatenate(lengths),
        np.concatenate(labels),
        None if scores[0] is None else np.concatenate(scores),
        None if features[0] is None else _dense(path, features),
    )


def _dense(path: Path, matrices: tuple[Any, ...]) -> Float32[np.ndarray, "rows f"]:
    width = max(matrix.shape[1] for matrix in matrices)
    if width > MAX_FEATURES:
        raise DataError(f"{path}: feature index {width}; expected at most {MAX_FEATURES}, for a dense array")
    dense, row = np.zeros((sum(matrix.shape[0] for matrix in matrices), width), np.float32), 0
    for matrix in matrices:
        dense[row : row + matrix.shape[0], : matrix.shape[1]] = matrix.toarray()
        row += matrix.shape[0]
    return dense


def _parts(path: Path, options: LetorOptions, watch: Watch | None) -> Iterator[_Part]:
    column = None if options.scores is None else NumberColumn(options.scores, "the score of a row")
    for queries, lengths, rows in _queries(path, options, watch):
        values = None if column is None else column.take(len(rows.labels))
        if values is not None and len(values) < len(rows.labels):
            raise _score_misfit(path, options.scores)
        scores = None if values is None else as_float32(values, lengths)
        yield _Part(queries, lengths, rows.labels, scores, rows.features)
    if column is not None and not column.ended():
        raise _score_misfit(path, options.scores)


def _score_misfit(path: Path, scores: Any) -> DataError:
    count = sum(map(len, number_blocks(scores, "the score of a row")))
    return DataError(f"{scores}: {count} scores but {path} has {_count(path)} rows; expected a score for each row")


# Queries: whole ones, where the blocks of a file end anywhere.

Queries = Iterator[tuple[tuple[str, ...], Int[np.ndarray, " lists"], Rows]]  # names, lengths and rows


def _queries(path: Path, options: LetorOptions, watch: Watch | None) -> Queries:
    blocks = read_rows(path, options.features, options.n_features, options.zero_based, watch)
    first = next(blocks)
    blocks, with_ids = chain([first], blocks), len(first.ids) > 0
    group = options.group or (None if with_ids else _sibling(path))
    if group is not None:
        return _by_size(path, group, blocks, with_ids)
    if with_ids:
        return _by_id(path, blocks)
    check_lines(path, data_lines(path), options.n_features, options.zero_based)  # later lines may have one
    raise DataError(
        f"{path}: no qid on any line; expected {EXPECTED}, or a group file with the number of rows of each query, "
        f"a line each, beside it as {_stem(path)}.query"
    )


def _by_id(path: Path, blocks: Iterable[Rows]) -> Queries:
    seen, row = set(), 0
    for rows in _whole(blocks):
        starts = np.concatenate([[0], np.flatnonzero(np.diff(rows.ids)) + 1])
        for start, query in zip(starts.tolist(), rows.ids[starts].tolist(), strict=True):
            if query in seen:
                line = _line_of(path, row + start)
                raise malformed(path, line, f"query {query} again, after other queries", "its lines together")
            seen.add(query)
        yield tuple(map(str, rows.ids[starts])), np.diff(starts, append=len(rows.ids)), rows
        row += len(rows.ids)


def _by_size(path: Path, group: Path, blocks: Iterable[Rows], with_ids: bool) -> Queries:
    sizes, done, rows = _sizes(group), 0, None
    for lengths, rows in _by_id_or_place(path, blocks, sizes, with_ids):
        stop = int(rows.ids[-1]) + 1 if lengths is None else done + len(lengths)
        same = lengths is None or np.array_equal(lengths, sizes[done:stop])
        if not same or len(rows.labels) != sizes[done:stop].sum():
            raise _size_misfit(path, group, sizes)
        yield _numbers(done, stop), sizes[done:stop], rows
        done = stop
    if sizes[done:].any() or (with_ids and done < len(sizes)):
        raise _size_misfit(path, group, sizes)
    if rows is not None and done < len(sizes):
        yield _numbers(done, len(sizes)), sizes[done:], rows.between(0, 0)


def _by_id_or_place(path: Path, blocks: Iterable[Rows], sizes: Any, with_ids: bool) -> Iterator[tuple[Any, Rows]]:
    """Whole queries: with their lengths by qid, or with the number of each row's query by the sizes."""
    if with_ids:
        yield from ((lengths, rows) for _, lengths, rows in _by_id(path, blocks))
        return
    yield from ((None, rows) for rows in _whole(_numbered(blocks, np.cumsum(sizes))))


def _numbered(blocks: Iterable[Rows], ends: Int[np.ndarray, " lists"]) -> Iterator[Rows]:
    row = 0
    for rows in blocks:
        stop = row + len(rows.labels)
        yield rows._replace(ids=np.searchsorted(ends, np.arange(row, stop), side="right"))
        row = stop


def _whole(blocks: Iterable[Rows]) -> Iterator[Rows]:
    """Rows whose last query goes on no further."""
    open_query: list[Rows] = []
    for rows in blocks:
        cut = int(np.flatnonzero(np.diff(rows.ids, prepend=rows.ids[0] - 1))[-1])
        if cut == 0 and (not open_query or open_query[-1].ids[-1] == rows.ids[0]):
            open_query.append(rows)
            continue
        yield Rows.together([*open_query, rows.between(0, cut)])
        open_query = [rows.between(cut, len(rows.ids))]
    yield Rows.together(open_query)


def _sizes(group: Path) -> Int[np.ndarray, " lists"]:
    sizes = read_numbers(group, "the number of rows of a query")
    wrong = np.flatnonzero((sizes < 0) | (sizes != np.floor(sizes)) | np.isinf(sizes))
    if len(wrong):
        found, line = f"{sizes[wrong[0]]:g}", _line_of(group, int(wrong[0]))
        raise malformed(group, line, found, "the number of rows of a query, 0 or more")
    return sizes.astype(np.int64)


def _size_misfit(path: Path, group: Path, sizes: Int[np.ndarray, " lists"]) -> DataError:
    if sizes.sum() == _count(path):
        return DataError(f"{group}: sizes differ from the qid of {path}; expected one of the two, or both the same")
    return DataError(
        f"{group}: the sizes of {len(sizes)} queries add up to {sizes.sum()} but {path} has {_count(path)} rows; "
        f"expected the group file of the same data"
    )


def _numbers(start: int, stop: int) -> tuple[str, ...]:
    return tuple(str(number + 1) for number in range(start, stop))


def _sibling(path: Path) -> Path | None:
    names = [_stem(path) + ending for ending in (".query", ".group")]
    return next((name for name in names if exists(name)), None)


def _stem(path: Path) -> str:
    return fspath(path).removesuffix(".gz")


def _line_of(path: Path, row: int) -> int:
    return next(number for i, (number, _) in enumerate(data_lines(path)) if i == row)


def _count(path: Path) -> int:
    return sum(1 for _ in data_lines(path))
