"""NeuralSort in sorted order: a band around the diagonal, as wide as it must be for the rest to vanish in rounding.

Row i of NeuralSort is a softmax over j of `((n - 1 - 2 i) s_j - sum_k |s_j - s_k|) / t`. In descending order, and
relative to the row's own peak, which is the item at position i, these logits are sums of gaps between neighbours:

    L_i(d) = -sum_{m = i+1..d} (2 (m - i) - 1) gap_m    for d > i, and alike on the other side

with `gap_m = (s_{m-1} - s_m) / t`. None is above 0, and n has dropped out. From the logits of one central row c,
`curve_d = -L_c(d)`, and the distances `offset_d = (s_c - s_d) / t` follow those of the rows near it:

    L_i(d) = 2 (i - c) (offset_d - offset_i) - (curve_d - curve_i)
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrank._arrays import expand
from jaxrank._gaps import Gaps, any_list, tie_starts, tied_groups
from jaxrank._typing import Lists, Mask, Ranked, Size

Tile = Float[Array, "*batch r w"]

ROWS = 32  # rows that share a central row: the farther a row is from it, the more digits its logits lose
COLUMNS = 128  # columns that are computed or skipped together, at most; a multiple of ROWS
TILE = 2**18  # numbers that are computed together


class Band(NamedTuple):
    """The first k rows of a relaxed permutation, not normalised, as the two products that are needed of it."""

    times: Callable[[Lists], tuple[Ranked, Ranked]]  # by a vector, and by ones
    transposed_times: Callable[[Ranked], Lists]


def matrix(weights: Tile) -> Band:
    return Band(partial(_times, weights), partial(_transposed_times, weights))


_product = partial(jnp.matmul, precision=lax.Precision.HIGHEST)


@jax.custom_jvp
def _times(weights: Tile, x: Lists) -> tuple[Ranked, Ranked]:
    products = _product(weights, jnp.stack([x, jnp.ones_like(x)], axis=-1))
    return products[..., 0], products[..., 1]


@_times.defjvp
def _times_jvp(primals, tangents):
    # Elementwise, so that the way back builds no second array of weights: 1024 x 10 x 54, 7.6 MiB against 8.9.
    (weights, x), (moved, x_moved) = primals, tangents
    by_x = (moved * x[..., None, :] + weights * x_moved[..., None, :]).sum(axis=-1)
    return _times(weights, x), (by_x, moved.sum(axis=-1))


def _transposed_times(weights: Tile, r: Ranked) -> Lists:
    return _product(r[..., None, :], weights)[..., 0, :]


# ------------------------------------------------------------------------------------------------- one block of rows


class _Rows(NamedTuple):
    """Whatever is added to all logits of a row is lost when the row is normalised: so its peak has no derivative."""

    peak: Ranked
    live: Mask


def _rows(curve: Ranked, offset: Ranked, live: Mask) -> _Rows:
    slope = expand(_slope(curve.shape[-1], curve.dtype), curve.ndim)
    return _Rows(lax.stop_gradient(slope * offset - curve), live)


def _slope(rows: int, dtype) -> Float[Array, " r"]:
    return (2 * (jnp.arange(rows, dtype=jnp.int32) - rows // 2)).astype(dtype)


def _logits(rows: _Rows, curve: Lists, offset: Lists) -> Tile:
    # As a product of a matrix of rows x 2, which is faster than sums of broadcast arrays and saves none of them.
    slope = _slope(rows.peak.shape[-1], curve.dtype)
    factors = jnp.stack([slope, -jnp.ones_like(slope)], axis=-1)
    return _product(factors, jnp.stack([offset, curve], axis=-2)) - rows.peak[..., :, None]


def _weights(rows: _Rows, curve: Lists, offset: Lists, live: Mask) -> Tile:
    return jnp.exp(jnp.where(rows.live[..., :, None] & live[..., None, :], _logits(rows, curve, offset), -jnp.inf))


def _dropped(logits: Float[Array, "*shape"], n: int) -> Bool[Array, "*shape"]:
    """Whether n items of no higher logit weigh together less than rounding, beside the peak's weight of 1."""
    log_n = float(np.log(n)) if isinstance(n, int) else jnp.log(jnp.asarray(n).astype(logits.dtype))
    return logits <= float(np.log(np.finfo(logits.dtype).eps / 4)) - log_n


# ------------------------------------------------------------------------------------------------------- tied scores


def _tie_term(gaps: Gaps) -> Lists:
    """Zeros with a derivative. Taken off the curve, it makes the derivative of |x| at 0 equal 0.

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
    of_ties = jax.checkpoint(_tied_tangent, prevent_cse=False)  # what it would keep is written where it is not used
    tangent = lax.cond(tied, of_ties, lambda tangent, _: jnp.zeros_like(tangent), tangents[0], starts)
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


def band(gaps: Gaps, k: int, n: int) -> Band:
    """The first k rows of lists of n, of which `gaps` are the best items or all."""
    width = gaps.gap.shape[-1]
    symbolic = not (isinstance(k, int) and isinstance(width, int))  # and cannot be cut into blocks
    return _tile(gaps, k) if symbolic or (k <= ROWS and width <= 2 * COLUMNS) else _streamed(gaps, k, n)


def _tile(gaps: Gaps, k: int) -> Band:
    """The weights as one array."""
    width = gaps.gap.shape[-1]
    # Twice as fast as cumulative sums on CPU: value and gradient of 64 x 74, 0.3 ms against 0.6.
    sums = _product(gaps.gap, _curve_matrix(width, k // 2, gaps.gap.dtype))
    curve, offset = sums[..., :width] - _tie_term(gaps), sums[..., width:]
    rows = _rows(curve[..., :k], offset[..., :k], gaps.live[..., :k])
    return matrix(_weights(rows, curve, offset, gaps.live))


def _curve_matrix(width: Size, centre: Size, dtype) -> np.ndarray | Array:
    xp = np if isinstance(width, int) else jnp  # a constant, where sizes are known
    gap, item, centre = xp.arange(width)[:, None], xp.arange(width)[None], xp.asarray(centre)
    below, above = (centre < gap) & (gap <= item), (item < gap) & (gap <= centre)
    curve = xp.where(below | above, abs(2 * (gap - centre) - 1), 0)
    return xp.concatenate([curve, below.astype(curve.dtype) - above.astype(curve.dtype)], axis=1).astype(dtype)


def reaches_beyond(gaps: Gaps, k: int, n: int) -> Bool[Array, "*batch 1"]:
    """Whether the first k rows weigh items behind the last column of w, out of n, by more than rounding.

    Of these rows the last decays the slowest, and no dropped item weighs more than the last one kept.
    """
    gap = lax.stop_gradient(gaps.gap[..., k:])
    slope = expand(2 * jnp.arange(gap.shape[-1], dtype=jnp.int32) + 1, gap.ndim).astype(gap.dtype)
    return gaps.live[..., -1:] & ~_dropped(-(slope * gap).sum(axis=-1, keepdims=True), n)


# ---------------------------------------------------------------------------------------------- many rows and columns


class _Grid(NamedTuple):
    """Sorted lists as blocks of columns on a leading axis, to be visited by blocks of rows."""

    gap: Float[Array, "blocks *batch w"]
    tie: Float[Array, "blocks *batch w"]
    live: Bool[Array, "blocks *batch w"]
    firsts: Int[Array, " r"]  # the first row of each block
    height: int


def _grid(gaps: Gaps, k: int, width: int, height: int) -> _Grid:
    gap, tie, live = (_blocks(array, width) for array in (gaps.gap, _tie_term(gaps), gaps.live))
    return _Grid(gap, tie, live, jnp.arange(0, k, height, dtype=jnp.int32), height)


def _blocks(array: Array, width: int) -> Array:
    padding = [(0, 0)] * (array.ndim - 1) + [(0, -array.shape[-1] % width)]
    return jnp.moveaxis(jnp.pad(array, padding).reshape(*array.shape[:-1], -1, width), -2, 0)


def _joined(blocks: Array, length: int) -> Array:
    split = jnp.moveaxis(blocks, 0, -2)
    return split.reshape(*split.shape[:-2], -1)[..., :length]


def _curve(grid: _Grid, first: Int[Array, ""]) -> tuple[_Rows, Array, Array]:
    """The rows from `first` on, and the `curve` and `offset` of their central row."""
    width = grid.gap.shape[-1]
    position = lax.broadcasted_iota(jnp.int32, grid.gap.shape, 0) * width
    distance = position + lax.broadcasted_iota(jnp.int32, grid.gap.shape, grid.gap.ndim - 1) - first - grid.height // 2
    next_block = jnp.concatenate([grid.gap[1:, ..., :1], jnp.zeros_like(grid.gap[:1, ..., :1])])
    step = jnp.where(distance > 0, grid.gap, jnp.concatenate([grid.gap[..., 1:], next_block], axis=-1))
    steps = jnp.stack([step * (2 * jnp.abs(distance) - 1).astype(step.dtype), step])
    below = _running_sum(jnp.where(distance[None] > 0, steps, 0))
    above = _running_sum(jnp.where(distance[None] < 0, steps, 0), reverse=True)
    curve, offset = below[0] + above[0] - grid.tie, below[1] - above[1]

    def of_rows(array: Array) -> Array:
        block = lax.dynamic_index_in_dim(array, first // width, keepdims=False)
        return lax.dynamic_slice_in_dim(block, first % width, grid.height, axis=-1)

    return _rows(of_rows(curve), of_rows(offset), of_rows(grid.live)), curve, offset


def _running_sum(steps: Array, reverse: bool = False) -> Array:
    """Along the list, of `[pair, blocks, ..., columns]`: within each block, and on top what came before it."""
    within = lax.cumsum(steps, axis=steps.ndim - 1, reverse=reverse)
    totals = lax.cumsum(within[..., :1] if reverse else within[..., -1:], axis=1, reverse=reverse)
    zero = jnp.zeros_like(totals[:, :1])
    earlier = [totals[:, 1:], zero] if reverse else [zero, totals[:, :-1]]
    return within + jnp.concatenate(earlier, axis=1)


def _needed(grid: _Grid, rows: _Rows, curve: Array, offset: Array, first: Array, n: int) -> Bool[Array, " blocks"]:
    """Which blocks of columns weigh more than rounding in some row of some list."""
    own = jnp.arange(curve.shape[0], dtype=jnp.int32) == first // curve.shape[-1]
    keep = jnp.zeros_like(own)
    for edge in (0, -1):  # no item of a block weighs more than the one nearest to the rows
        at_edge = [jnp.moveaxis(lax.stop_gradient(array[..., edge]), 0, -1) for array in (curve, offset, grid.live)]
        dropped = _dropped(_logits(lax.stop_gradient(rows), *at_edge[:2]), n)
        keep = keep | any_list((rows.live[..., :, None] & at_edge[2][..., None, :] & ~dropped).any(axis=-2))
    return keep | own


def _streamed(gaps: Gaps, k: int, n: int) -> Band:
    """Any number of rows, in blocks; of each only the columns that weigh more than rounding.

    Nothing of size k x w is ever kept: on the way back the blocks are computed anew.
    """
    length, height = gaps.gap.shape[-1], min(k, ROWS)
    width = _block_width(gaps.gap.shape[:-1], height)
    grid = _grid(gaps, k, width, height)

    def products(first: Array, product: Callable, given: Array, zeros: Callable):
        """`product(weights, given)` for each block of columns of the rows from `first` on; 0 where not needed."""
        rows, curve, offset = _curve(grid, first)

        def block(columns):
            needed, curve, offset, live, given = columns
            return lax.cond(
                needed,
                lambda: product(_weights(rows, curve, offset, live), given),
                lambda: zeros(rows, curve),
            )

        needed = _needed(grid, rows, curve, offset, first, n)
        return lax.map(_recomputed(block), (needed, curve, offset, grid.live, given))

    def times(x: Lists) -> tuple[Ranked, Ranked]:
        given = _blocks(x, width)

        def of_rows(first: Array) -> tuple[Ranked, Ranked]:
            blocks = products(first, _times, given, lambda rows, _: (jnp.zeros_like(rows.peak),) * 2)
            return blocks[0].sum(axis=0), blocks[1].sum(axis=0)

        rows = lax.map(_recomputed(of_rows), grid.firsts)
        return _joined(rows[0], k), _joined(rows[1], k)

    def transposed_times(r: Ranked) -> Lists:
        def add(total, first_and_r):
            first, r = first_and_r
            given = jnp.broadcast_to(r, (total.shape[0], *r.shape))
            return total + products(first, _transposed_times, given, lambda _, curve: jnp.zeros_like(curve)), None

        total, _ = lax.scan(_recomputed(add), jnp.zeros_like(grid.gap), (grid.firsts, _blocks(r, height)))
        return _joined(total, length)

    return Band(times, transposed_times)


_recomputed = partial(jax.checkpoint, prevent_cse=False)


def _block_width(batch: tuple[int, ...], height: int) -> int:
    """A power of two between ROWS and COLUMNS."""
    width = COLUMNS
    while width > ROWS and all(isinstance(size, int) for size in batch) and prod(batch) * height * width > TILE:
        width //= 2
    return width


def all_rows(gaps: Gaps, k: int) -> Tile:
    """The weights of the first k rows, in sorted order."""
    length, height = gaps.gap.shape[-1], min(k, ROWS)
    grid = _grid(gaps, k, length + -length % height, height)

    def block(first: Array) -> Tile:
        rows, curve, offset = _curve(grid, first)
        return _weights(rows, curve[0], offset[0], grid.live[0])

    rows = jnp.moveaxis(lax.map(block, grid.firsts), 0, -3)
    return rows.reshape(*rows.shape[:-3], -1, rows.shape[-1])[..., :k, :length]
