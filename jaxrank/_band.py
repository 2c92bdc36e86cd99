"""NeuralSort in sorted order: a band around the diagonal, as wide as it must be for the rest to vanish in rounding.

Row i of NeuralSort is a softmax over j of `((n - 1 - 2 i) s_j - sum_k |s_j - s_k|) / t`. In descending order, and
relative to the row's own peak, which is the item at position i, these logits are sums of gaps between neighbours:

    L_i(d) = -sum_{m = i+1..d} (2 (m - i) - 1) gap_m    for d > i, and alike on the other side

with `gap_m = (s_{m-1} - s_m) / t`. None is above 0, and n has dropped out. From the logits of one central row c,
`curve_d = -L_c(d)`, and the distances `offset_d = (s_c - s_d) / t` follow those of the rows near it:

    L_i(d) = 2 (i - c) (offset_d - offset_i) - (curve_d - curve_i)
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrank._arrays import expand
from jaxrank._gaps import Gaps, any_list, tie_starts, tied_groups
from jaxrank._typing import Lists, Mask, Ranked

Tile = Float[Array, "*batch r w"]

ROWS = 32  # rows that share a central row: the farther a row is from it, the more digits its logits lose
COLUMNS = 128  # columns that are computed or skipped together; a multiple of ROWS


_product = partial(jnp.matmul, precision=lax.Precision.HIGHEST)


class Band(NamedTuple):
    """The first k rows of a relaxed permutation, not normalised, as the two products that are needed of it."""

    times: Callable[[Float[Array, "*batch w c"]], Float[Array, "*batch k c"]]
    transposed_times: Callable[[Ranked], Lists]


def matrix(weights: Tile) -> Band:
    return Band(partial(_product, weights), lambda r: _product(r[..., None, :], weights)[..., 0, :])


# ------------------------------------------------------------------------------------------------- one block of rows


class _Rows(NamedTuple):
    curve: Ranked
    offset: Ranked
    live: Mask


def _curve(gap: Lists, centre: int | Int[Array, ""]) -> tuple[Lists, Lists]:
    """`curve` and `offset` of the row at position `centre`."""
    width = gap.shape[-1]
    if isinstance(centre, int) and width <= 2 * COLUMNS:
        # Twice as fast as cumulative sums on CPU: value and gradient of 64 x 74, 0.3 ms against 0.6.
        sums = _product(gap, _curve_matrix(width, centre, gap.dtype.name))
        return sums[..., :width], sums[..., width:]
    distance = expand(jnp.arange(width, dtype=jnp.int32) - centre, gap.ndim)
    following = jnp.concatenate([gap[..., 1:], jnp.zeros_like(gap[..., :1])], axis=-1)
    step = jnp.where(distance > 0, gap, following)
    below, above = _sums_outwards(step * (2 * jnp.abs(distance) - 1).astype(gap.dtype), distance)
    after, before = _sums_outwards(step, distance)
    return below + above, after - before


def _sums_outwards(step: Lists, distance: Int[Array, "*one w"]) -> tuple[Lists, Lists]:
    axis = step.ndim - 1
    below = lax.cumsum(jnp.where(distance > 0, step, 0), axis=axis)
    above = lax.cumsum(jnp.where(distance < 0, step, 0), axis=axis, reverse=True)
    return below, above


@lru_cache
def _curve_matrix(width: int, centre: int, dtype: str) -> np.ndarray:
    gap, item = np.ogrid[:width, :width]
    below, above = (centre < gap) & (gap <= item), (item < gap) & (gap <= centre)
    curve = np.where(below | above, np.abs(2 * (gap - centre) - 1), 0)
    return np.concatenate([curve, below.astype(int) - above], axis=1).astype(dtype)


def _logits(rows: _Rows, curve: Lists, offset: Lists) -> Tile:
    count = rows.curve.shape[-1]
    shift = (jnp.arange(count, dtype=jnp.int32) - count // 2).astype(curve.dtype)
    slope = expand(2 * shift, curve.ndim)[..., :, None]
    return slope * (offset[..., None, :] - rows.offset[..., :, None]) - (curve[..., None, :] - rows.curve[..., :, None])


def _weights(logits: Tile, row_live: Mask, live: Mask) -> Tile:
    return jnp.where(row_live[..., :, None] & live[..., None, :], jnp.exp(logits), 0)


def _dropped(logits: Float[Array, "*shape"], n: int) -> Bool[Array, "*shape"]:
    """Whether n items of no higher logit weigh together less than rounding, beside the peak's weight of 1."""
    return logits <= np.log(np.finfo(logits.dtype).eps / 4) - np.log(n)


# ------------------------------------------------------------------------------------------------------- tied scores


def _tie_term(gaps: Gaps) -> Lists:
    """Zeros with a derivative. Added to the logits, it makes the derivative of |x| at 0 equal 0.

    Without it, tied items have the derivative of the order in which they happen to be sorted.
    """
    return _zero_with_derivative(gaps.gap, tie_starts(gaps))


@jax.custom_jvp
def _zero_with_derivative(gap: Lists, starts: Mask) -> Lists:
    return jnp.zeros_like(gap)


@_zero_with_derivative.defjvp
def _zero_with_derivative_jvp(primals, tangents):
    gap, starts = primals
    # Ties are rare in real scores: without them this costs nothing.
    tied = any_list(~starts).any()
    tangent = lax.cond(tied, _tied_tangent, lambda tangent, _: jnp.zeros_like(tangent), tangents[0], starts)
    return jnp.zeros_like(gap), tangent


def _tied_tangent(gap_tangent: Lists, starts: Mask) -> Lists:
    """`sum_j (ds_j - ds_d) / t` over the items tied with d before it, less the same sum over those after it."""
    first, last = tied_groups(starts)
    position = lax.broadcasted_iota(jnp.int32, first.shape, first.ndim - 1)
    tangent = -jnp.cumsum(gap_tangent, axis=-1)
    total = jnp.cumsum(tangent, axis=-1)
    before = total - tangent
    take = partial(jnp.take_along_axis, axis=-1)
    own = (first + last - 2 * position).astype(tangent.dtype) * tangent
    return (before - take(before, first)) + own - (take(total, last) - total)


# ------------------------------------------------------------------------------------------------ few rows and columns


def tile(gaps: Gaps, k: int) -> Band:
    """The weights as one array."""
    curve, offset = _curve(gaps.gap, k // 2)
    rows = _Rows(curve[..., :k], offset[..., :k], gaps.live[..., :k])
    return matrix(_weights(_logits(rows, curve, offset) + _tie_term(gaps)[..., None, :], rows.live, gaps.live))


def reaches_beyond(gaps: Gaps, k: int, n: int) -> Bool[Array, "*batch 1"]:
    """Whether the first k rows weigh items behind the last column of w, out of n, by more than rounding.

    Of these rows the last decays the slowest, and no dropped item weighs more than the last one kept.
    """
    gap = lax.stop_gradient(gaps.gap[..., k:])
    slope = expand(2 * jnp.arange(gap.shape[-1], dtype=jnp.int32) + 1, gap.ndim).astype(gap.dtype)
    return gaps.live[..., -1:] & ~_dropped(-(slope * gap).sum(axis=-1, keepdims=True), n)


# ---------------------------------------------------------------------------------------------- many rows and columns


class _Columns(NamedTuple):
    """Sorted lists, filled up to whole blocks of columns."""

    gap: Lists
    tie: Lists
    live: Mask


def _columns(gaps: Gaps) -> _Columns:
    padding = [(0, 0)] * (gaps.gap.ndim - 1) + [(0, -gaps.gap.shape[-1] % COLUMNS)]
    return _Columns(*(jnp.pad(array, padding) for array in (gaps.gap, _tie_term(gaps), gaps.live)))


def _rows_from(first: Int[Array, ""], columns: _Columns) -> tuple[_Rows, Lists, Lists]:
    curve, offset = _curve(columns.gap, first + ROWS // 2)
    rows = partial(lax.dynamic_slice_in_dim, start_index=first, slice_size=ROWS, axis=-1)
    return _Rows(rows(curve), rows(offset), rows(columns.live)), curve, offset


def _needed(rows: _Rows, curve: Lists, offset: Lists, live: Mask, own: Array, n: int) -> Bool[Array, " blocks"]:
    """Which blocks of columns weigh more than rounding in some row of some list."""
    keep = jnp.zeros((), bool)
    for edge in (0, COLUMNS - 1):  # no item of a block weighs more than the one nearest to the rows
        logits = lax.stop_gradient(_logits(rows, curve[..., edge::COLUMNS], offset[..., edge::COLUMNS]))
        keep = keep | (rows.live[..., :, None] & live[..., None, edge::COLUMNS] & ~_dropped(logits, n))
    return any_list(keep.any(axis=-2)) | (jnp.arange(keep.shape[-1], dtype=jnp.int32) == own)


def _blocks(array: Array, axis: int = -1) -> Array:
    """Blocks of columns on a new leading axis."""
    axis %= array.ndim
    split = array.reshape(*array.shape[:axis], -1, COLUMNS, *array.shape[axis + 1 :])
    return jnp.moveaxis(split, axis, 0)


def _joined(blocks: Array, axis: int) -> Array:
    """The inverse of `_blocks`, also for blocks of rows."""
    split = jnp.moveaxis(blocks, 0, axis - 1)
    axis %= blocks.ndim - 1
    return split.reshape(*split.shape[:axis], -1, *split.shape[axis + 2 :])


def streamed(gaps: Gaps, k: int, n: int) -> Band:
    """Any number of rows, in blocks; of each only the columns that weigh more than rounding.

    Nothing of size k x w is ever kept: on the way back the blocks are computed anew.
    """
    columns, width = _columns(gaps), gaps.gap.shape[-1]
    firsts = jnp.arange(0, k, ROWS, dtype=jnp.int32)

    def products(first: Array, product: Callable[[Tile, Array], Array], given: Array) -> Array:
        """`product(weights, given)` for each block of columns of the rows from `first` on; 0 where not needed."""
        rows, curve, offset = _rows_from(first, columns)
        needed = _needed(rows, curve, offset, columns.live, first // COLUMNS, n)

        def weighed(curve, offset, tie, live, given):
            return product(_weights(_logits(rows, curve, offset) + tie[..., None, :], rows.live, live), given)

        def block(needed_and_columns):
            needed, *columns = needed_and_columns
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(weighed, *columns))
            return lax.cond(needed, weighed, lambda *_: zeros, *columns)

        blocks = (needed, *map(_blocks, (curve, offset, columns.tie, columns.live)), given)
        return lax.map(jax.checkpoint(block, prevent_cse=False), blocks)

    def times(x):
        given = _blocks(_padded(x, width + -width % COLUMNS, axis=-2), axis=-2)
        rows = jax.checkpoint(lambda first: products(first, _product, given).sum(axis=0), prevent_cse=False)
        return _joined(lax.map(rows, firsts), axis=-2)[..., :k, :]

    def transposed_times(r):
        r = _padded(r, firsts.size * ROWS, axis=-1)

        def add(total, first):
            rows = lax.dynamic_slice_in_dim(r, first, ROWS, axis=-1)[..., None, :]
            given = jnp.broadcast_to(rows, (columns.live.shape[-1] // COLUMNS, *rows.shape))
            return total + _joined(products(first, lambda w, r: _product(r, w)[..., 0, :], given), axis=-1), None

        total, _ = lax.scan(jax.checkpoint(add, prevent_cse=False), jnp.zeros_like(columns.gap), firsts)
        return total[..., :width]

    return Band(times, transposed_times)


def all_rows(gaps: Gaps, k: int) -> Tile:
    """The weights of the first k rows, in sorted order."""
    columns = _columns(gaps)

    def block(first: Array) -> Tile:
        rows, curve, offset = _rows_from(first, columns)
        return _weights(_logits(rows, curve, offset) + columns.tie[..., None, :], rows.live, columns.live)

    blocks = lax.map(block, jnp.arange(0, k, ROWS, dtype=jnp.int32))
    return _joined(blocks, axis=-2)[..., :k, : gaps.gap.shape[-1]]


def _padded(array: Array, length: int, axis: int) -> Array:
    padding = [(0, 0)] * array.ndim
    padding[axis] = (0, length - array.shape[axis])
    return jnp.pad(array, padding)
