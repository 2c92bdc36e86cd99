"""A file that several processes read: each parses its own blocks of whole queries, then they tell each other of them.

Everyone goes through the text, which is cheap, to find where queries and so blocks begin; a block is parsed by one.
"""

import json
import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from jaxrank.data._files import DataError, Path, Watch, line_blocks
from jaxrank.data._lists import RankingLists

SMALLEST_BLOCK = 4096  # bytes; a block takes some 0.3 ms, however small
BLOCKS_EACH = 16  # blocks of each process, of a short file: so that none is left without


class ScatteredError(Exception):
    """A query came back after other queries."""


def _alone(told: bytes) -> list[bytes]:
    return [told]


class Share(NamedTuple):
    """Which process this is, and how it exchanges words with the others: its own for everyone's, in order."""

    index: int = 0
    count: int = 1
    exchange: Callable[[bytes], list[bytes]] = _alone

    def owns(self, numbers: Any) -> Any:
        return numbers % self.count == self.index

    def of(self, lists: RankingLists) -> RankingLists:
        """All the lists, those of other processes without rows."""
        owned = self.owns(np.arange(len(lists)))
        rows = np.repeat(owned, lists.lengths)
        scores, features = (None if column is None else column[rows] for column in (lists.scores, lists.features))
        return RankingLists(lists.queries, lists.lengths * owned, lists.labels[rows], scores, features)


WHOLE = Share()


class Block(NamedTuple):
    """Text of whole queries, and the number of its first line."""

    number: int
    first: int
    text: bytes


class Found(NamedTuple):
    """The queries of a file, in its order, and which of them this process holds."""

    queries: tuple[str, ...]
    owned: Bool[np.ndarray, " queries"]


class Reading:
    """One pass of this process over a file, and what it has found."""

    def __init__(self, path: Path, share: Share):
        self.path, self.share = path, share
        self._numbers: list[int] = []
        self._queries: list[str] = []
        self._block, self._checksum = 0, 0

    def blocks(self, cut: "Cut", size: int, watch: Watch | None) -> Iterator[tuple[Block, bool]]:
        """All blocks of the file, of about `size` bytes; which of them are this process's to parse?"""
        if self.share.count > 1:
            each = os.stat(self.path).st_size // (BLOCKS_EACH * self.share.count)
            size = min(size, max(SMALLEST_BLOCK, each))
        for block in query_blocks(self.path, cut, size, watch):
            if self.share.count > 1:
                self._checksum = zlib.crc32(block.text, self._checksum)
            self._block = block.number
            yield block, self.share.owns(block.number)

    def found(self, numbers: list[int], queries: list[str]) -> None:
        """Takes note of own queries, and of the number of the block of each."""
        self._numbers += numbers
        self._queries += queries

    def agree(self, error: Exception | None = None) -> Found:
        """Puts together what all have found, once each is through; an error of one is the error of all."""
        told = {
            "numbers": self._numbers,
            "queries": self._queries,
            "scattered": isinstance(error, ScatteredError),
            "error": None if error is None else [self._block, str(error)],
            "checksum": self._checksum,
        }
        every = [json.loads(words) for words in self.share.exchange(json.dumps(told).encode())]
        if any(each["scattered"] for each in every):
            raise ScatteredError from error
        errors = [each["error"] for each in every if each["error"]]
        if errors:
            raise DataError(min(errors)[1]) from error
        other = next((i for i, each in enumerate(every) if each["checksum"] != every[0]["checksum"]), None)
        if other is not None:
            raise DataError(
                f"{self.path}: processes 0 and {other} have read different files; expected the same on every machine"
            )
        order = np.argsort([number for each in every for number in each["numbers"]], kind="stable")
        queries = [query for each in every for query in each["queries"]]
        holders = np.repeat(np.arange(len(every)), [len(each["queries"]) for each in every])
        return Found(tuple(queries[i] for i in order), holders[order] == self.share.index)


# ---------------------------------------------------------------------------------------------- blocks of whole queries

Cut = Callable[[bytes], int | None]  # where in a text its last query begins; None if that began before the text


def query_blocks(path: Path, cut: Cut, size: int, watch: Watch | None) -> Iterator[Block]:
    """The blocks of `line_blocks`, cut again so that no query goes on in the next one."""
    held: list[bytes] = []
    number, first = 0, 1
    for start, text in line_blocks(path, size, watch):
        place = cut(text)
        if place is None:
            first = first if held else start
            held.append(text)
            continue
        if any(held) or place:
            yield Block(number, first if held else start, b"".join([*held, text[:place]]))
            number += 1
        held, first = [text[place:]], start + text.count(b"\n", 0, place)
    if any(held):
        yield Block(number, first, b"".join(held))


class KeyCut:
    """Cuts where the key of a line, such as its query, changes; a line without one belongs to those before."""

    def __init__(self, key: Callable[[bytes], Any]):
        self._key, self._open = key, None

    def __call__(self, text: bytes) -> int | None:
        first = next((key for key in map(self._key, _forwards(text)) if key is not None), None)
        if first is None:
            return None
        last = next(key for _, line in _backwards(text) if (key := self._key(line)) is not None)
        before, self._open = self._open, last
        if first == last:  # the lines of a query stand together, else it shows when they are parsed
            return None if before in (None, first) else 0
        begin = len(text)
        for start, line in _backwards(text):
            key = self._key(line)
            if key not in (None, last):
                break
            begin = begin if key is None else start
        return begin


class SizeCut:
    """Cuts by the number of lines of each query; `count` says how many a text holds, `counts` whether a line counts."""

    def __init__(self, ends: Int[np.ndarray, " lists"], count: Callable[[bytes], int], counts: Callable[[bytes], bool]):
        self._ends, self._count, self._counts, self._row = ends, count, counts, 0

    def __call__(self, text: bytes) -> int | None:
        start = self._row
        self._row += self._count(text)
        if self._row == start:
            return None
        query = np.searchsorted(self._ends, self._row - 1, side="right")
        begin = int(self._ends[query - 1]) if query else 0
        if begin <= start:
            return 0 if begin == start > 0 else None
        lines = (place for place, line in _backwards(text) if self._counts(line))
        return next(place for i, place in enumerate(lines, 1) if i == self._row - begin)


def _forwards(text: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(text):
        end = text.find(b"\n", start) + 1 or len(text)
        yield text[start:end]
        start = end


def _backwards(text: bytes) -> Iterator[tuple[int, bytes]]:
    """Lines with where they begin, the last one first."""
    end = len(text)
    while end > 0:
        start = text.rfind(b"\n", 0, end - 1) + 1
        yield start, text[start:end]
        end = start
