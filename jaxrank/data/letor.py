"""Learning-to-rank files: SVMlight lines, with `qid:` or with group sizes in a file of their own."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from os import fspath
from os.path import exists
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int

from jaxrank.data import _files
from jaxrank.data._files import DataError, NumberColumn, Path, Watch, malformed, number_blocks, read_numbers
from jaxrank.data._lists import BLOCK_ROWS, RankingLists, as_float32, in_blocks
from jaxrank.data._shares import WHOLE, Cut, KeyCut, Reading, Share, SizeCut
from jaxrank.data._svmlight import (
    EXPECTED,
    Format,
    Rows,
    check_lines,
    count_data,
    data_lines,
    has_query,
    is_data,
    query_of,
    read_block,
)

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
    """What `map_letor` made of the lists of a share, and all queries: which are of the share?"""

    parts: list[Any]
    queries: tuple[str, ...]
    owned: Bool[np.ndarray, " queries"]


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
    reading = Reading(path, share)
    try:
        parts = [use(_together(path, block)) for block in in_blocks(_parts(reading, options, watch), block_rows)]
    except DataError as error:
        reading.agree(error)
        raise
    found = reading.agree()
    twice = next((query for query, times in Counter(found.queries).items() if times > 1), None)
    if twice is not None:
        raise _again(path, twice)
    return MappedLists(parts, *found)


def read_share(path: Path, options: LetorOptions, share: Share) -> RankingLists:
    """The lists of `read_letor` with features, those of other processes without rows; no more than these are held."""
    parts, queries, owned = map_letor(lambda lists: lists, path, options, share=share, block_rows=None)
    lengths = np.zeros(len(queries), np.int64)
    if not parts:
        return RankingLists(queries, lengths, np.zeros(0, np.float32), features=np.zeros((0, 0), np.float32))
    lengths[owned] = parts[0].lengths
    return replace(parts[0], queries=queries, lengths=lengths)


class _Part(NamedTuple):
    """Some queries with all their rows."""

    queries: list[str]
    lengths: Int[np.ndarray, " lists"]
    labels: Float32[np.ndarray, " rows"]
    scores: Float32[np.ndarray, " rows"] | None
    features: Any  # a sparse matrix, or None


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


def _parts(reading: Reading, options: LetorOptions, watch: Watch | None) -> Iterator[_Part]:
    """The lists of the share, a block at a time."""
    path = reading.path
    column = None if options.scores is None else NumberColumn(options.scores, "the score of a row")
    for piece, queries, lengths in _queries(reading, options, watch):
        values = None if column is None else column.take(piece.count)
        if values is not None and len(values) < piece.count:
            raise _score_misfit(path, options.scores)
        if piece.rows is not None and queries:
            reading.found([piece.number] * len(queries), queries)
            scores = None if values is None else as_float32(values, lengths)
            features = piece.rows.features if options.features else None
            yield _Part(queries, lengths, piece.rows.labels, scores, features)
    if column is not None and not column.ended():
        raise _score_misfit(path, options.scores)


def _score_misfit(path: Path, scores: Any) -> DataError:
    count = sum(map(len, number_blocks(scores, "the score of a row")))
    return DataError(f"{scores}: {count} scores but {path} has {_count(path)} rows; expected a score for each row")


# Queries, block by block.


class _Piece(NamedTuple):
    """A block of whole queries: its number, how many rows it has, and the rows, if this process is to parse it."""

    number: int
    count: int
    rows: Rows | None


Queries = Iterator[tuple[_Piece, list[str], Int[np.ndarray, " lists"]]]  # names and lengths of the queries of a piece


def _queries(reading: Reading, options: LetorOptions, watch: Watch | None) -> Queries:
    path, format = reading.path, Format(has_query(reading.path), options.n_features, options.zero_based)
    group = options.group or (None if format.with_query else _sibling(path))
    if group is None and not format.with_query:
        check_lines(path, data_lines(path), *format[1:])  # later lines may have one
        raise DataError(
            f"{path}: no qid on any line; expected {EXPECTED}, or a group file with the number of rows of each query, "
            f"a line each, beside it as {_stem(path)}.query"
        )
    if group is None:
        return _by_id(path, _pieces(reading, KeyCut(query_of), format, watch))
    sizes = _sizes(group)
    cut = KeyCut(query_of) if format.with_query else SizeCut(np.cumsum(sizes), count_data, is_data)
    return _by_size(path, group, sizes, _pieces(reading, cut, format, watch))


def _pieces(reading: Reading, cut: Cut, format: Format, watch: Watch | None) -> Iterator[_Piece]:
    for block, own in reading.blocks(cut, _files.BLOCK_BYTES, watch):
        rows = read_block(reading.path, block.first, block.text, format) if own else None
        yield _Piece(block.number, count_data(block.text) if rows is None else len(rows.labels), rows)


def _by_id(path: Path, pieces: Iterable[_Piece]) -> Queries:
    seen: set[int] = set()
    for piece in pieces:
        ids, lengths = _runs(piece.rows)
        for query in ids:
            if query in seen:
                raise _again(path, query)
            seen.add(query)
        yield piece, list(map(str, ids)), lengths


def _runs(rows: Rows | None) -> tuple[list[int], Int[np.ndarray, " lists"]]:
    """The queries of rows, and the number of rows of each."""
    ids = np.zeros(0, np.int64) if rows is None else rows.ids
    starts = np.flatnonzero(np.diff(ids, prepend=ids[:1] - 1))
    return ids[starts].tolist(), np.diff(starts, append=len(ids))


def _again(path: Path, query: str | int) -> DataError:
    before, lines = None, []
    for number, fields in data_lines(path):
        if fields[1] != before and int(fields[1].removeprefix("qid:")) == int(query):
            lines.append(number)
        before = fields[1]
    return malformed(path, lines[1], f"query {query} again, after other queries", "its lines together")


def _by_size(path: Path, group: Path, sizes: Int[np.ndarray, " lists"], pieces: Iterable[_Piece]) -> Queries:
    ends, row, done = np.cumsum(sizes), 0, 0
    for piece in pieces:
        row += piece.count
        stop = int(np.searchsorted(ends, row, side="right"))
        same = piece.rows is None or not len(piece.rows.ids) or np.array_equal(_runs(piece.rows)[1], sizes[done:stop])
        if not same or piece.count != sizes[done:stop].sum():
            raise _size_misfit(path, group, sizes)
        yield piece, _numbers(done, stop), sizes[done:stop]
        done = stop
    if done < len(sizes):
        raise _size_misfit(path, group, sizes)


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


def _numbers(start: int, stop: int) -> list[str]:
    return [str(number + 1) for number in range(start, stop)]


def _sibling(path: Path) -> Path | None:
    names = [_stem(path) + ending for ending in (".query", ".group")]
    return next((name for name in names if exists(name)), None)


def _stem(path: Path) -> str:
    return fspath(path).removesuffix(".gz")


def _line_of(path: Path, row: int) -> int:
    return next(number for i, (number, _) in enumerate(data_lines(path)) if i == row)


def _count(path: Path) -> int:
    return sum(1 for _ in data_lines(path))
