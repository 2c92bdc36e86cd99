"""What the readers share: opening files, numbers in text, and the error for bad input."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import BinaryIO

import numpy as np
from jaxtyping import Float

Path = str | PathLike[str]

FLOAT32_MAX = float(np.finfo(np.float32).max)


class DataError(ValueError):
    """Input that cannot be read: where it stands, what was expected, and what to do next."""


def malformed(path: Path, line: int, found: str, expected: str) -> DataError:
    return DataError(f"{path}:{line}: {found}; expected {expected}")


@contextmanager
def open_binary(path: Path) -> Iterator[BinaryIO]:
    """Opens a file for reading, through gzip where its first two bytes say so (the name does not matter)."""
    with open(path, "rb") as raw:
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


def read_numbers(path: Path, what: str) -> Float[np.ndarray, " lines"]:
    """One number on each line; `what` names it in the error."""
    values = []
    for number, line in numbered_lines(path):
        try:
            values.append(float32_number(line.strip(), infinite=True))
        except ValueError as error:
            raise malformed(path, number, f"{line.strip()[:80]!r}", f"{what}, {error}") from error
    return np.array(values, np.float64)
