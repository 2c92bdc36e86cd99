"""SVMlight lines, parsed by scikit-learn in blocks of whole lines.

scikit-learn's errors name no line, and it accepts NaN and lines without a qid: the lines of such a block are looked at
one by one. The qid are found here: its way, a copy of all of them for each line, took minutes for a million lines.
"""

import re
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int64

from jaxrank.data._files import (
    DataError,
    Path,
    block_lines,
    float32_number,
    malformed,
    numbered_lines,
)

EXPECTED = "label qid:query index:value ..., as in: 2 qid:1 1:0.5 3:1.25"
QID = re.compile(rb"^[ \t\r\v\f]*[^\s#]+[ \t\r\v\f]+qid:(-?\d+)(?=\s|#|$)", re.MULTILINE)
DATA = re.compile(rb"^[ \t\r\v\f]*[^\s#]", re.MULTILINE)
ODD = [b"\n" + mark for mark in (b"#", b"\n", b" ", b"\t", b"\r", b"\v", b"\f")]
Lines = Iterable[tuple[int, list[str]]]  # numbers and fields


class Rows(NamedTuple):
    """Lines as columns; `ids` is empty where there is no qid, `features` is a sparse matrix or None."""

    labels: Float32[np.ndarray, " rows"]
    ids: Int64[np.ndarray, " ids"]
    features: Any


class Format(NamedTuple):
    """How the lines of a file are: whether each has a qid, how many features at most, and whether they count from 0."""

    with_query: bool
    n_features: int | None
    zero_based: bool


def read_block(path: Path, first: int, block: bytes, format: Format) -> Rows:
    """Some lines of a file, of which `first` is the number of the first.

    Raises:
      DataError: the first malformed line, by file and number.
    """
    rows = _parsed(block, format.n_features, format.zero_based)
    if rows is None or (len(rows.labels) and format.with_query != (len(rows.ids) > 0)):
        check_lines(path, _fields(block_lines(path, first, block)), *format[1:], format.with_query)
        raise DataError(f"{path}: scikit-learn cannot read the lines from {first} on; expected {EXPECTED}")
    return rows


def has_query(path: Path) -> bool:
    """Whether the first line has a qid."""
    for _, fields in data_lines(path):
        return fields[1:2] != [] and fields[1].startswith("qid:")
    raise DataError(f"{path}: no lines; expected {EXPECTED}")


def query_of(line: bytes) -> int | None:
    found = QID.match(line)
    return int(found[1]) if found else None


def is_data(line: bytes) -> bool:
    return DATA.match(line) is not None


def count_data(text: bytes) -> int:
    """How many lines of a text are no comments."""
    odd = text[:1] in b"#\n \t\r\v\f" or any(mark in text for mark in ODD)
    return len(DATA.findall(text)) if odd else text.count(b"\n") + (text[-1:] != b"\n")


def _parsed(block: bytes, n_features: int | None, zero_based: bool) -> Rows | None:
    """The columns of a block, or None where a line needs a closer look."""
    try:
        from sklearn.datasets import load_svmlight_file
    except ImportError as error:
        raise ImportError('LETOR files are read with scikit-learn: pip install "jaxrank[cli]"') from error
    try:
        matrix, labels, *_ = load_svmlight_file(
            BytesIO(block),
            n_features=n_features,
            dtype=np.float32,  # pyright: ignore[reportArgumentType]
            zero_based=zero_based,  # pyright: ignore[reportArgumentType]
        )
        ids = np.array(list(map(int, QID.findall(block))), np.int64)
    except (ValueError, OverflowError):
        return None
    labels = labels.astype(np.float32)
    finite = np.isfinite(labels).all() and np.isfinite(matrix.data).all()
    return Rows(labels, ids, matrix) if finite and len(ids) in (0, len(labels)) else None


def data_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Fields of the lines that are not comments, with their numbers."""
    return _fields(numbered_lines(path))


def _fields(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    for number, line in lines:
        fields = line.partition("#")[0].split()
        if fields:
            yield number, fields


def check_lines(
    path: Path, lines: Lines, n_features: int | None, zero_based: bool, with_query: bool | None = None
) -> None:
    """Raises at the first malformed line; `with_query` says whether lines before these have a qid."""
    for number, (label, *rest) in lines:
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
