"""Padded batches of lists, in few shapes and with little padding.

Every shape is one compilation, so lists are put into buckets by length and each bucket has one shape. Bucket edges
are chosen for the lengths at hand: the fewest buckets that keep padding below the limit.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int, Integer

from jaxrank.data._lists import RankingLists

SLACK = 0.05  # more padding than asked for, before another shape is compiled
MAX_EDGES = 512  # candidate edges; more would cost time and gain nothing


class Bucket(NamedTuple):
    """Lists that share a padded shape.

    Args:
      lists: their positions in the `RankingLists`.
      rows: lists in a batch.
      length: slots in a list.
    """

    lists: Int[np.ndarray, " lists"]
    rows: int
    length: int


class Batch(NamedTuple):
    """A padded batch. Rows that only fill up the last batch of a bucket have `lists` -1 and no valid slot.

    Args:
      lists: position of each row's list in the `RankingLists`, or -1.
      where: true in the slots that hold a document.
      labels: relevance grades, 0 in padding.
      scores: scores, 0 in padding; None where the lists have none.
      features: feature values, 0 in padding; None where the lists have none.
    """

    lists: Int[np.ndarray, " b"]
    where: Bool[np.ndarray, "b n"]
    labels: Float32[np.ndarray, "b n"]
    scores: Float32[np.ndarray, "b n"] | None
    features: Float32[np.ndarray, "b n f"] | None


def length_buckets(
    lengths: Integer[np.ndarray, " lists"],
    *,
    batch_size: int | None = None,
    max_slots: int = 1 << 20,
    max_padding: float = 0.12,
) -> list[Bucket]:
    r"""Divides lists into buckets of one shape each, with less than `max_padding` of all slots empty.

    $$ \text{padding} = 1 - \sum_i n_i \Big/ \sum_i L_{b(i)} $$

    with $n_i$ the length of list $i$ and $L_{b(i)}$ the length of its bucket. Rows that fill up the last batch of a
    bucket are not counted: there is less than one a batch.

    Args:
      lengths: rows of each list, `[lists]`.
      batch_size: lists in a batch, at most; as many as `max_slots` allows by default.
      max_slots: slots in a batch, at most, unless a single list is longer.
      max_padding: share of slots that may be empty.

    Returns:
      The buckets, shortest lists first; each list is in one of them.

    Raises:
      ValueError: `batch_size` or `max_slots` below 1, or `max_padding` not above 0.

    Example:
      >>> [(bucket.rows, bucket.length) for bucket in length_buckets(np.array([3, 100, 98, 3, 2]))]
      [(3, 3), (2, 100)]
    """
    for name, value in (("batch_size", batch_size), ("max_slots", max_slots)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; expected 1 or more")
    if not max_padding > 0:
        raise ValueError(f"max_padding is {max_padding}; expected a share above 0, such as 0.1")
    edges = _edges(np.maximum(lengths, 1), max_padding)
    member = np.searchsorted(edges, np.maximum(lengths, 1))
    return [
        Bucket(lists, _rows(len(lists), int(edge), batch_size, max_slots), int(edge))
        for bucket, edge in enumerate(edges)
        if len(lists := np.flatnonzero(member == bucket))
    ]


def _rows(count: int, length: int, batch_size: int | None, max_slots: int) -> int:
    """Lists in a batch: spread evenly, so that the batches of a bucket need fewer than one filler each."""
    most = max(1, min(max_slots // length, batch_size or count))
    return -(-count // -(-count // most))


def _edges(lengths: Integer[np.ndarray, " lists"], max_padding: float) -> Integer[np.ndarray, " edges"]:
    """Upper edges of the fewest buckets that keep padding below the limit, by dynamic programming.

    `cost[j]` is the number of slots of all lists up to candidate `j` in the best division that ends there; each round
    of the loop allows one bucket more.
    """
    if not len(lengths):
        return np.zeros(0, np.int64)
    edges = _candidates(lengths)
    counts = np.concatenate([[0], np.searchsorted(np.sort(lengths), edges, side="right")])
    slots = np.tril(edges[:, None] * (counts[1:, None] - counts[None, :-1])).astype(float)
    slots[np.triu_indices(len(edges), 1)] = np.inf
    cost, splits = slots[:, 0], [np.zeros(len(edges), np.int64)]
    while cost[-1] * (1 - max_padding) >= lengths.sum() and len(splits) < len(edges):
        total = slots + np.concatenate([[0], cost[:-1]])
        splits.append(total.argmin(1))
        cost = total.min(1)
    return edges[_chosen(splits)]


def _candidates(lengths: Integer[np.ndarray, " lists"]) -> Int[np.ndarray, " candidates"]:
    different = np.unique(lengths).astype(np.int64)
    if len(different) > MAX_EDGES:
        different = different[np.linspace(0, len(different) - 1, MAX_EDGES).round().astype(int)]
    return different


def _chosen(splits: list[Int[np.ndarray, " candidates"]]) -> list[int]:
    """Follows the splits back from the longest length."""
    last, chosen = len(splits[0]) - 1, []
    for split in reversed(splits):
        chosen.append(last)
        last = int(split[last]) - 1
        if last < 0:
            break
    return chosen[::-1]


def padded_batches(
    lists: RankingLists,
    *,
    batch_size: int | None = None,
    max_slots: int = 1 << 20,
    max_padding: float = 0.12,
    rng: np.random.Generator | int | None = None,
    shapes: dict[int, int] | None = None,
    lengths: Integer[np.ndarray, " lists"] | None = None,
) -> Iterator[Batch]:
    """Yields every list once, in padded batches: one epoch.

    Args:
      lists: the lists; their scores and features are batched where there are any.
      batch_size: lists in a batch, at most; as many as `max_slots` allows by default.
      max_slots: slots in a batch, at most, unless a single list is longer.
      max_padding: share of slots that may be empty.
      rng: a generator, or a seed, that shuffles lists and batches; without it the order is that of the lists, shortest
        bucket first. Pass one generator to every epoch to have each in a new order.
      shapes: lengths and rows of earlier batches, which serve again while they keep padding low, and are added to. Pass
        one dict with every part of a long file, and the parts share compilations; padding may then be a little more.
      lengths: with several processes, of which each holds some lists and has the others without rows: rows of all
        lists. Every process then yields as many batches, with what it holds of each.

    Returns:
      An iterator of batches. Shapes repeat: one for each bucket, the same in every epoch.

    Raises:
      ValueError: as `length_buckets`.

    Example:
      >>> lists = RankingLists(("a", "b"), np.array([2, 1]), np.array([1, 0, 3], np.float32))
      >>> batch = next(padded_batches(lists, max_padding=0.5))
      >>> batch.labels.tolist(), batch.where.tolist()
      ([[1.0, 0.0], [3.0, 0.0]], [[True, True], [True, False]])
    """
    options = {"batch_size": batch_size, "max_slots": max_slots, "max_padding": max_padding}
    every = lists.lengths if lengths is None else lengths
    buckets = length_buckets(every, **options) if shapes is None else _shared_buckets(every, shapes, options)
    generator = None if rng is None else np.random.default_rng(rng)
    offsets = lists.offsets
    for bucket, chosen in _epoch(buckets, generator):
        if lengths is not None:
            bucket, chosen = _held(lists, bucket, chosen)
        yield _padded(lists, offsets, bucket, chosen)


def _shared_buckets(
    lengths: Integer[np.ndarray, " lists"], shapes: dict[int, int], options: dict[str, Any]
) -> list[Bucket]:
    """Buckets of the shapes there are; if those would pad too much, of more shapes."""
    slots = np.maximum(lengths, 1)
    edges = np.array(sorted(shapes), np.int64)
    padded = edges[np.minimum(np.searchsorted(edges, slots), len(edges) - 1)] if len(edges) else np.zeros_like(slots)
    if (padded < slots).any() or padded.sum() * (1 - options["max_padding"] - SLACK) >= slots.sum():
        fresh = {_rounded(bucket.length): bucket.rows for bucket in length_buckets(lengths, **options)}
        shapes.update(fresh | shapes)
        edges = np.array(sorted(shapes), np.int64)
    member = edges[np.searchsorted(edges, slots)]
    return [Bucket(np.flatnonzero(member == edge), shapes[int(edge)], int(edge)) for edge in np.unique(member)]


def _rounded(length: int) -> int:
    """Up to five binary digits, so that the next block's longest list, a little longer, needs no other shape."""
    step = 1 << max(length.bit_length() - 5, 0)
    return -(-length // step) * step


def _epoch(buckets: list[Bucket], rng: np.random.Generator | None) -> list[tuple[Bucket, Int[np.ndarray, " chosen"]]]:
    parts = []
    for bucket in buckets:
        order = bucket.lists if rng is None else rng.permutation(bucket.lists)
        parts += [(bucket, order[start : start + bucket.rows]) for start in range(0, len(order), bucket.rows)]
    return parts if rng is None else [parts[i] for i in rng.permutation(len(parts))]


def _held(
    lists: RankingLists, bucket: Bucket, chosen: Int[np.ndarray, " chosen"]
) -> tuple[Bucket, Int[np.ndarray, " held"]]:
    """What this process has of a batch, in one number of rows that is nearly always enough; if not, in all of them."""
    held = chosen[lists.lengths[chosen] > 0]
    expected = bucket.rows * np.count_nonzero(lists.lengths) / len(lists)
    enough = math.ceil(expected + 2.5 * math.sqrt(expected)) + 1
    return bucket._replace(rows=min(enough, bucket.rows) if len(held) <= enough else bucket.rows), held


def _padded(
    lists: RankingLists, offsets: Int[np.ndarray, " offsets"], bucket: Bucket, chosen: Int[np.ndarray, " chosen"]
) -> Batch:
    filled = np.concatenate([chosen, np.full(bucket.rows - len(chosen), -1)])
    lengths = np.where(filled >= 0, lists.lengths[filled], 0)
    slot = np.arange(bucket.length)
    where = slot < lengths[:, None]
    row = (offsets[filled][:, None] + slot)[where]

    return Batch(
        filled,
        where,
        _spread(lists.labels, row, where),
        None if lists.scores is None else _spread(lists.scores, row, where),
        None if lists.features is None else _spread(lists.features, row, where),
    )


def _spread(column: np.ndarray, row: Int[np.ndarray, " valid"], where: Bool[np.ndarray, "b n"]) -> np.ndarray:
    padded = np.zeros((*where.shape, *column.shape[1:]), column.dtype)
    padded[where] = column[row]
    return padded
