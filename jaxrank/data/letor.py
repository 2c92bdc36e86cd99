"""Learning-to-rank files: SVMlight lines, with `qid:` or with group sizes in a file of their own."""

from collections.abc import Iterator
from os import fspath
from os.path import exists
from typing import Any

import numpy as np
from jaxtyping import Float32, Int

from jaxrank.data._files import (
    DataError,
    Path,
    float32_number,
    malformed,
    numbered_lines,
    open_binary,
    read_numbers,
)
from jaxrank.data._lists import RankingLists, as_float32

EXPECTED = "label qid:query index:value ..., as in: 2 qid:1 1:0.5 3:1.25"
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
    matrix, labels, ids = _load(path, n_features, zero_based)
    group = group or (None if len(ids) else _sibling(path))
    names, lengths = _groups(path, ids, len(labels)) if group is None else _group_file(path, group, ids, len(labels))
    return RankingLists(
        names,
        lengths,
        labels,
        None if scores is None else _scores(path, scores, lengths),
        _dense(path, matrix) if features else None,
    )


def _load(path: Path, n_features: int | None, zero_based: bool) -> tuple[Any, Float32[np.ndarray, " rows"], Any]:
    try:
        from sklearn.datasets import load_svmlight_file
    except ImportError as error:
        raise ImportError('LETOR files are read with scikit-learn: pip install "jaxrank[cli]"') from error
    try:
        with open_binary(path) as file:
            matrix, labels, ids = load_svmlight_file(
                file,
                n_features=n_features,
                dtype=np.float32,  # pyright: ignore[reportArgumentType]
                zero_based=zero_based,  # pyright: ignore[reportArgumentType]
                query_id=True,
            )
    except DataError:
        raise
    except (ValueError, OverflowError) as error:
        _check_lines(path, n_features, zero_based)
        raise DataError(f"{path}: {error}; expected {EXPECTED}") from error
    labels = labels.astype(np.float32)
    if not (np.isfinite(labels).all() and np.isfinite(matrix.data).all() and len(ids) in (0, len(labels))):
        _check_lines(path, n_features, zero_based)
    if not len(labels):
        raise DataError(f"{path}: no lines; expected {EXPECTED}")
    return matrix, labels, ids


def _dense(path: Path, matrix: Any) -> Float32[np.ndarray, "rows f"]:
    if matrix.shape[1] > MAX_FEATURES:
        raise DataError(f"{path}: feature index {matrix.shape[1]}; expected at most {MAX_FEATURES}, for a dense array")
    return matrix.toarray()


def _groups(path: Path, ids: Any, rows: int) -> tuple[tuple[str, ...], Int[np.ndarray, " lists"]]:
    if not len(ids):
        raise DataError(
            f"{path}: no qid on any line; expected {EXPECTED}, or a group file with the number of rows of each query, "
            f"a line each, beside it as {_stem(path)}.query"
        )
    starts = np.concatenate([[0], np.flatnonzero(np.diff(ids)) + 1])
    names, first = np.unique(ids[starts], return_index=True)
    if len(names) < len(starts):
        again = starts[np.setdiff1d(np.arange(len(starts)), first)[0]]
        raise malformed(
            path, _line_of(path, int(again)), f"query {ids[again]} again, after other queries", "its lines together"
        )
    return tuple(map(str, ids[starts])), np.diff(starts, append=rows)


def _group_file(path: Path, group: Path, ids: Any, rows: int) -> tuple[tuple[str, ...], Int[np.ndarray, " lists"]]:
    sizes = read_numbers(group, "the number of rows of a query")
    wrong = np.flatnonzero((sizes < 0) | (sizes != np.floor(sizes)) | np.isinf(sizes))
    if len(wrong):
        found = f"{sizes[wrong[0]]:g}"
        raise malformed(group, _line_of(group, int(wrong[0])), found, "the number of rows of a query, 0 or more")
    if sizes.sum() != rows:
        raise DataError(
            f"{group}: the sizes of {len(sizes)} queries add up to {sizes.sum():.0f} but {path} has {rows} rows; "
            f"expected the group file of the same data"
        )
    if len(ids) and not np.array_equal(_groups(path, ids, rows)[1], sizes):
        raise DataError(f"{group}: sizes differ from the qid of {path}; expected one of the two, or both the same")
    return tuple(str(number) for number in range(1, len(sizes) + 1)), sizes.astype(np.int64)


def _sibling(path: Path) -> Path | None:
    names = [_stem(path) + ending for ending in (".query", ".group")]
    return next((name for name in names if exists(name)), None)


def _stem(path: Path) -> str:
    return fspath(path).removesuffix(".gz")


def _scores(path: Path, scores: Path, lengths: Int[np.ndarray, " lists"]) -> Float32[np.ndarray, " rows"]:
    values = read_numbers(scores, "the score of a row")
    if len(values) != lengths.sum():
        raise DataError(
            f"{scores}: {len(values)} scores but {path} has {lengths.sum()} rows; expected a score for each row"
        )
    return as_float32(values, lengths)


# scikit-learn's errors name no line, and it accepts NaN and lines without a qid: those files are read again.


def _data_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in numbered_lines(path):
        fields = line.partition("#")[0].split()
        if fields:
            yield number, fields


def _line_of(path: Path, row: int) -> int:
    return next(number for i, (number, _) in enumerate(_data_lines(path)) if i == row)


def _check_lines(path: Path, n_features: int | None, zero_based: bool) -> None:
    """Raises at the first malformed line."""
    with_query = None
    for number, (label, *rest) in _data_lines(path):
        has_query = bool(rest) and rest[0].startswith("qid:")
        with_query = has_query if with_query is None else with_query
        _check_number(path, number, label, "label", float)
        if has_query != with_query:
            raise malformed(path, number, f"{'a' if has_query else 'no'} qid, unlike the lines before", EXPECTED)
        if has_query:
            _check_number(path, number, rest.pop(0).removeprefix("qid:"), "qid", int)
        _check_features(path, number, rest, n_features, zero_based)


def _check_features(path: Path, number: int, fields: list[str], n_features: int | None, zero_based: bool) -> None:
    first = last = -1 if zero_based else 0
    for field in fields:
        index, colon, value = field.partition(":")
        if not colon:
            raise malformed(path, number, f"{field!r}", "index:value")
        index = _check_number(path, number, index, "feature index", int)
        if index <= last:
            hint = " (pass zero_based=True for a file that counts from 0)" if index == 0 == first else ""
            raise malformed(path, number, f"feature index {index}", f"one above {last}{hint}")
        if n_features is not None and index > n_features + first:
            raise malformed(path, number, f"feature index {index}", f"at most {n_features + first}, as in other files")
        _check_number(path, number, value, f"value of feature {index}", float)
        last = index


def _check_number(path: Path, number: int, text: str, what: str, kind: type) -> Any:
    try:
        return _whole_number(text) if kind is int else float32_number(text, infinite=False)
    except ValueError as error:
        raise malformed(path, number, f"{what} {text!r}", str(error)) from error


def _whole_number(text: str) -> int:
    if not text.lstrip("-").isdecimal() or abs(int(text)) >= 2**63:
        raise ValueError("a whole number of at most 64 bits")
    return int(text)
