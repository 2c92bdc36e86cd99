"""What the readers share: opening files, numbers in text, and the error for bad input."""

import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float64

Path = str | os.PathLike[str]
Watch = Callable[[int, int, int], object]  # called with lines so far, bytes of the file so far, and its size

FLOAT32_MAX = float(np.finfo(np.float32).max)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BLOCK_BYTES = 2 << 20


class DataError(ValueError):
    """Input that cannot be read: where it stands, what was expected, and what to do next."""


def malformed(path: Path, line: int, found: str, expected: str) -> DataError:
    return DataError(f"{path}:{line}: {found}; expected {expected}")


@contextmanager
def open_binary(path: Path) -> Iterator[BinaryIO]:
    """Opens a file for reading, through gzip where its first two bytes say so (the name does not matter)."""
    with open(path, "rb") as raw:
        if not raw.seekable():
            raise DataError(f"{path}: a pipe, which can be read but once; expected a file (it may be gzip)")
        packed = raw.peek(2)[:2] == b"\x1f\x8b"
        try:
            yield gzip.GzipFile(fileobj=raw) if packed else raw  # pyright: ignore[reportReturnType]
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{path}: damaged gzip file ({error}); expected a complete one: copy it again") from error


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that hold something, with their number in the file, counted from 1."""
    with open_binary(path) as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                yield number, decoded(path, number, line)


def block_lines(path: Path, first: int, block: bytes) -> Iterator[tuple[int, str]]:
    """Those of a block, of which `first` is the number of the first."""
    for number, line in enumerate(block.split(b"\n"), first):
        if line.strip():
            yield number, decoded(path, number, line)


def decoded(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise malformed(path, number, "bytes that are not UTF-8", "UTF-8 text") from error


def float32_number(text: str, *, infinite: bool) -> float:
    """The number in a text; the error says what was expected."""
    expected = "a number" if infinite else "a finite number"
    try:
        value = float(text)
    except ValueError as error:
        raise ValueError(expected) from error
    if np.isnan(value) or "_" in text or (np.isinf(value) and "inf" in text.lower() and not infinite):
        raise ValueError(expected)
    if abs(value) > FLOAT32_MAX and "inf" not in text.lower():
        raise ValueError(f"{expected} that float32 holds, at most {FLOAT32_MAX:.3g}")
    return value


def line_blocks(path: Path, size: int | None = None, watch: Watch | None = None) -> Iterator[tuple[int, bytes]]:
    """Blocks of whole lines, of about `size` bytes, with the number of each block's first line."""
    size = size or BLOCK_BYTES
    number = 1
    with open_binary(path) as file:
        report = _reporter(file, watch)
        rest = file.read(size).removeprefix(BYTE_ORDER_MARK)
        while chunk := file.read(size):
            lines, newline, rest = (rest + chunk).rpartition(b"\n")
            yield number, lines + newline
            number += lines.count(b"\n") + len(newline)
            report(number - 1)
        yield number, rest
        report(number - 1 + rest.count(b"\n"))


def _reporter(file: Any, watch: Watch | None) -> Callable[[int], object]:
    if watch is None:
        return lambda lines: None
    raw = getattr(file, "fileobj", file)  # of a gzip file, what is packed
    size = os.fstat(raw.fileno()).st_size
    return lambda lines: watch(lines, raw.tell(), size)


def read_numbers(path: Path, what: str) -> Float64[np.ndarray, " lines"]:
    """One number on each line; `what` names it in the error."""
    return np.concatenate(list(number_blocks(path, what)))


def number_blocks(path: Path, what: str) -> Iterator[Float64[np.ndarray, " lines"]]:
    """The numbers of `read_numbers`, a block of lines at a time."""
    for first, block in line_blocks(path):
        values = _plain_numbers(block)
        yield _checked_numbers(path, first, block, what) if values is None else values


def _plain_numbers(block: bytes) -> Float64[np.ndarray, " lines"] | None:
    """The numbers of a block, or None where a line needs a closer look."""
    try:
        values = np.array(list(map(float, block.removesuffix(b"\n").split(b"\n"))), np.float64)
    except ValueError:
        return None
    return values if (np.abs(values) <= FLOAT32_MAX).all() and b"_" not in block else None


def _checked_numbers(path: Path, first: int, block: bytes, what: str) -> Float64[np.ndarray, " lines"]:
    values = []
    for number, text in block_lines(path, first, block):
        try:
            values.append(float32_number(text.strip(), infinite=True))
        except ValueError as error:
            raise malformed(path, number, f"{text.strip()[:80]!r}", f"{what}, {error}") from error
    return np.array(values, np.float64)


class NumberColumn:
    """The numbers of a file, taken some at a time."""

    def __init__(self, path: Path, what: str):
        self._blocks, self._rest = number_blocks(path, what), np.zeros(0)

    def take(self, count: int) -> Float64[np.ndarray, " taken"]:
        """The next numbers, fewer where the file ends."""
        parts, missing = [], count
        while missing > 0 and (len(self._rest) or self._advance()):
            part, self._rest = self._rest[:missing], self._rest[missing:]
            parts.append(part)
            missing -= len(part)
        return np.concatenate([np.zeros(0), *parts])

    def _advance(self) -> bool:
        self._rest = next((block for block in self._blocks if len(block)), self._rest)
        return len(self._rest) > 0

    def ended(self) -> bool:
        """Whether all were taken."""
        return len(self._rest) == 0 and not self._advance()
