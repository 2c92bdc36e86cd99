"""Flat lists: rows in any order, each with the id of its list, sorted so that every list's rows stand side by side.

Nothing that runs along the rows may add up floating-point numbers across lists: a long sum would lose the digits of
the short lists, and one list's NaN would reach all others.
"""

import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import core, lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxrank import _arrays, metrics, ordering
from jaxrank._typing import ArrayLike, Checked, DiscountFn, GainFn, TieRule
from jaxrank.gains import gain_shift

Floats = Float[Array, " rows"]
Integers = Int[Array, " rows"]
Flags = Bool[Array, " rows"]
Sums = Float[Array, "segments c"]

# -------------------------------------------------------------------------------------------------------- the border


def as_segment_ids(segment_ids: ArrayLike) -> jax.Array | np.ndarray:
    try:
        ids = _arrays.as_array("segment_ids", segment_ids)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error} jaxrank.dense_segments turns any query ids into 0, 1, 2, ...") from error
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise TypeError(
            f"segment_ids must be integers from 0 to num_segments - 1; got dtype {ids.dtype}. "
            "jaxrank.dense_segments turns any query ids into them."
        )
    return ids


def check_num_segments(num_segments: Checked) -> int:
    if isinstance(num_segments, core.Tracer):
        raise TypeError(
            "num_segments must be known when the function is compiled, but it is traced; mark it static "
            "(jax.jit(f, static_argnames='num_segments')) or close over it."
        )
    if isinstance(num_segments, (bool, np.bool_)) or not hasattr(num_segments, "__index__"):
        raise TypeError(f"num_segments must be an int; got {num_segments!r} of type {type(num_segments).__name__}.")
    num_segments = operator.index(num_segments)
    if num_segments < 0:
        raise ValueError(f"num_segments must not be negative; got {num_segments}.")
    return num_segments


class Rows(NamedTuple):
    scores: Shaped[Array, " rows"]
    labels: Floats
    segments: Integers  # `num_segments` where a row is masked or belongs to no list


def as_rows(scores: Array, labels: Array, segment_ids: Array, where: Array | None, num_segments: int) -> Rows:
    """Checked, labels in the dtype of the result."""
    given = {"scores": scores, "labels": labels, "segment_ids": segment_ids}
    _check_rows(given | ({} if where is None else {"where": where}))
    ids = segment_ids.astype(jnp.int64 if segment_ids.dtype.itemsize == 8 else jnp.int32)
    valid = (ids >= 0) & (ids < num_segments)
    if where is not None:
        valid = valid & where.astype(bool)
    segments = jnp.where(valid, ids, num_segments).astype(jnp.int32)
    return Rows(scores, labels.astype(_arrays.result_dtype(scores, labels)), segments)


def _check_rows(given: dict[str, Array]) -> None:
    for name, array in given.items():
        _arrays.check_real(name, array)
    if len({array.shape for array in given.values()}) > 1 or given["scores"].ndim != 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in given.items())
        raise ValueError(
            f"flat lists are one-dimensional arrays of one length, a row an item; got {shapes}. "
            "Padded lists go to `ndcg_at_k`; for the scores of several models use `jax.vmap`."
        )


# ---------------------------------------------------------------------------------------------------------- the order


class Ranked(NamedTuple):
    """The rows by list, and in each list by rank."""

    order: Integers  # which row stands at each place
    segments: Integers
    ranks: Integers  # in its list, from 0
    keys: Floats  # -inf: has no rank
    labels: Floats
    best_keys: Floats  # `metrics.gain_keys` of the ideal order: best label first
    weigh: metrics.ScaledGain
    bad: Bool[Array, " segments"]  # has no value


def ranked_rows(
    rows: Rows, keys: Floats, gain_fn: GainFn, bad: Flags, num_segments: int, ties: TieRule = "average"
) -> Ranked:
    """Lists of a `bad` row, or of a label that is NaN, are dropped here, so that nothing of them reaches another."""
    label_keys = metrics.gain_keys(gain_fn, rows.labels, rows.segments < num_segments)
    bad_lists = lists_with(bad | jnp.isnan(label_keys), rows.segments, num_segments)
    segments = jnp.where(of_list(bad_lists, rows.segments, False), num_segments, rows.segments)
    kept = segments < num_segments
    keys, label_keys = _arrays.masked(keys, kept, -jnp.inf), _arrays.masked(label_keys, kept, -jnp.inf)
    index = lax.broadcasted_iota(jnp.int32, keys.shape, 0)
    preference = {"best": (-label_keys,), "worst": (label_keys,)}.get(ties, ())
    operands = segments, -keys, *(lax.stop_gradient(key) for key in preference), index
    segments, keys, *_, order = lax.sort(operands, num_keys=len(operands), is_stable=False)
    best_keys = -lax.sort((segments, -label_keys[order]), num_keys=2)[1]
    first = lax.cummax(jnp.where(ordering.starts(segments), index, 0))
    weigh = metrics.scaled_by(gain_shift(gain_fn, best_keys[first]), gain_fn, best_keys)
    labels = _arrays.masked(rows.labels, kept, 0.0)[order]
    return Ranked(order, segments, index - first, -keys, labels, best_keys, weigh, bad_lists)


def lists_with(flag: Flags, segments: Integers, num_segments: int) -> Bool[Array, " segments"]:
    """Whether a list holds a row that is flagged."""
    return jax.ops.segment_sum(flag.astype(jnp.int32), segments, num_segments) > 0


def of_list(values: Shaped[Array, " segments"], segments: Integers, fill: float | int) -> Shaped[Array, " rows"]:
    """Each row's value of its list; `fill` for a row that belongs to none."""
    return jnp.append(values, jnp.asarray(fill, values.dtype))[segments]


# ----------------------------------------------------------------------------------------------------- gains and sums


def hard_gains(rows: Ranked, depth: int, ties: TieRule) -> Floats:
    """The gain at each of the first ranks, 0 after `depth`: `ordering.ranked_gains` for flat lists."""
    retrieved = rows.keys > -jnp.inf
    inside = retrieved & (rows.ranks < depth)
    if ties != "average":
        return ordering.valid_gains(rows.labels, inside, rows.weigh.gain)
    begins = (rows.ranks == 0) | ordering.starts(rows.keys)

    def averaged() -> Floats:
        # Of a tie at the cutoff the rows behind it count too, but of no other.
        place = lax.broadcasted_iota(jnp.int32, begins.shape, 0)
        reached = retrieved & (rows.ranks[lax.cummax(jnp.where(begins, place, 0))] < depth)
        gains = ordering.valid_gains(rows.labels, reached, rows.weigh.gain)
        return _arrays.masked(ordering.group_means(begins, gains), inside, 0.0)

    tied = (~begins & retrieved).any()
    return lax.cond(tied, averaged, lambda: ordering.valid_gains(rows.labels, inside, rows.weigh.gain))


def best_gains(rows: Ranked, depth: int) -> Floats:
    """The largest gains of each list, descending, 0 after `depth`."""
    inside = (rows.best_keys > -jnp.inf) & (rows.ranks < depth)
    return ordering.valid_gains(rows.best_keys, inside, rows.weigh.gain_of_key)


def discounted(rows: Ranked, gains: Floats, discount_fn: DiscountFn, k: Checked, num_segments: int) -> Sums:
    """`metrics.discounted` of each list."""
    terms = gains * discount_fn((rows.ranks + 1).astype(gains.dtype))
    return _first_ranks(rows, terms, k, num_segments)


def all_equal(rows: Ranked, one: Floats, other: Floats, k: Checked, num_segments: int) -> Bool[Array, "segments c"]:
    return _first_ranks(rows, (one != other).astype(jnp.int32), k, num_segments) == 0


def _first_ranks(rows: Ranked, terms: Shaped[Array, " rows"], k: Checked, num_segments: int):
    """The sum of each list's first ranks up to each cutoff, by one scatter: into the bands between the cutoffs."""
    cutoffs = () if k is None else k if isinstance(k, tuple) else (k,)
    edges = sorted(set(cutoffs))
    bands = len(edges) + 1
    band = sum(((rows.ranks >= edge).astype(jnp.int32) for edge in edges), jnp.zeros_like(rows.ranks))
    sums = jax.ops.segment_sum(terms, rows.segments * bands + band, num_segments * bands, indices_are_sorted=True)
    up_to = jnp.cumsum(sums.reshape(num_segments, bands), axis=1)
    return jnp.stack([up_to[:, edges.index(cutoff)] for cutoff in cutoffs], axis=1) if cutoffs else up_to
