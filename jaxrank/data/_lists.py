"""Lists of any length as flat columns: what the readers return and batching takes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int, Integer

BLOCK_ROWS = 500_000  # of a long file that are held at a time


@dataclass(frozen=True, eq=False)
class RankingLists:
    """Lists of any length as flat columns, one row for each document, the rows of a list together.

    Args:
      queries: a name for each list.
      lengths: rows of each list.
      labels: relevance grade of each row.
      scores: score of each row; `-inf` is a document that was judged but not retrieved.
      features: feature values of each row.

    Raises:
      ValueError: the columns do not have `lengths.sum()` rows each.

    Example:
      >>> lists = RankingLists(("a", "b"), np.array([2, 1]), np.array([1, 0, 3], np.float32))
      >>> len(lists), lists.offsets.tolist()
      (2, [0, 2, 3])
    """

    queries: tuple[str, ...]
    lengths: Integer[np.ndarray, " lists"]
    labels: Float32[np.ndarray, " rows"]
    scores: Float32[np.ndarray, " rows"] | None = None
    features: Float32[np.ndarray, "rows f"] | None = None

    def __post_init__(self):
        if len(self.queries) != len(self.lengths):
            raise ValueError(
                f"{len(self.queries)} queries but {len(self.lengths)} lengths; expected one of each a list"
            )
        for name in ("labels", "scores", "features"):
            column = getattr(self, name)
            if column is not None and len(column) != self.lengths.sum():
                raise ValueError(f"{name} has {len(column)} rows but the lengths add up to {self.lengths.sum()}")
        for name in ("lengths", "labels", "scores", "features"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _read_only(getattr(self, name)))

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def offsets(self) -> Int[np.ndarray, " offsets"]:
        """Row where each list begins, and the number of rows at the end."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)


def _read_only(column: np.ndarray) -> np.ndarray:
    view = column.view()  # the caller's own array stays as it is
    view.flags.writeable = False
    return view


def in_blocks(parts: Iterable[Any], rows: int | None) -> Iterator[list[Any]]:
    """Parts together, until they have that many rows (their `labels` count); all of them together by default."""
    block, count = [], 0
    for part in parts:
        block.append(part)
        count += len(part.labels)
        if rows is not None and count >= rows:
            yield block
            block, count = [], 0
    if block:
        yield block


def as_float32(
    scores: Float64[np.ndarray, " rows"], lengths: Integer[np.ndarray, " lists"]
) -> Float32[np.ndarray, " rows"]:
    """Scores rounded to float32; ranks instead, in lists where rounding would tie different scores.

    A ranking metric sees only order and ties, so this loses nothing, and float32 is what is fast.

    Example:
      >>> as_float32(np.array([20.00000001, 20.00000002, -np.inf, 0.5]), np.array([3, 1])).tolist()
      [-1.0, 0.0, -inf, 0.5]
    """
    rounded, owners = scores.astype(np.float32), np.repeat(np.arange(len(lengths)), lengths)
    same = owners[1:] == owners[:-1]
    order = np.arange(len(scores))
    if (same & (scores[1:] > scores[:-1])).any():  # runs mostly come sorted
        order = np.lexsort((-scores, owners))
    differs = scores[order][1:] != scores[order][:-1]
    merged = differs & same & (rounded[order][1:] == rounded[order][:-1])
    if not merged.any():
        return rounded
    steps = np.concatenate([[0], np.cumsum(differs & same)])
    rank = np.empty(len(scores))
    rank[order] = steps - np.repeat(steps[np.minimum(np.cumsum(lengths) - lengths, len(scores) - 1)], lengths)
    tied = np.bincount(owners[1:][merged], minlength=len(lengths)) > 0
    return np.where(tied[owners] & (scores > -np.inf), 0 - rank, rounded).astype(np.float32)
