"""NeuralSort and SoftSort of flat lists: the two products of a relaxed permutation that `relaxations.weighed` needs.

What is ranked stands in a table of lists x k; what it is ranked from, along the rows.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxrank import _laplace
from jaxrank._band import Band
from jaxrank._gaps import any_list, scaled, tied_groups
from jaxrank._segments import Flags, Floats, Integers, of_list
from jaxrank._softsort import laplace_band

Table = Float[Array, "segments k"]
Counts = Int[Array, " segments"]


class FlatGaps(NamedTuple):
    """`_gaps.Gaps` of all lists, side by side."""

    gap: Floats  # (score before - score) / temperature; 0 at the first of a list and past the last live item
    live: Flags  # has a rank
    segments: Integers
    ranks: Integers
    starts: Flags  # a group of tied scores starts here
    tied: Floats  # 0, with the derivative of (score - first score of the tied group) / temperature
    counts: Counts  # how many items of a list are live
    places: Counts  # where a list begins


def flat_gaps(
    scores: Floats, live: Flags, segments: Integers, ranks: Integers, temperature: Float[Array, " segments"]
) -> FlatGaps:
    """From scores by list and rank, 0 where not live."""
    count = partial(jax.ops.segment_sum, segment_ids=segments, num_segments=temperature.shape[0])
    live_rows, all_rows = count(live.astype(jnp.int32)), count(jnp.ones_like(segments))
    temperature = of_list(temperature, segments, 1.0)
    previous = jnp.concatenate([scores[:1], scores[:-1]])
    gap = scaled(jnp.where(live & (ranks > 0), previous - scores, 0)[:, None], temperature[:, None])[:, 0]
    starts = (gap > 0) | ~live | (ranks == 0)
    tied = (scores - scores[tied_groups(starts)[0]]) / temperature
    tied = tied - lax.stop_gradient(tied)
    return FlatGaps(gap, live, segments, ranks, starts, tied, live_rows, jnp.cumsum(all_rows) - all_rows)


# ---------------------------------------------------------------------------------------------------------- NeuralSort


def neural_band(gaps: FlatGaps, k: int) -> Band:
    """One rank of all lists at a time: nothing of size rows x k is ever kept, nor for the way back."""
    some = jnp.arange(k, dtype=jnp.int32)
    weights = partial(_neural_weights, gaps, _tie_term(gaps))

    def times(x: Floats) -> tuple[Table, Table]:
        def of_rank(rank: Int[Array, ""]) -> Float[Array, "segments 2"]:
            row = weights(rank)
            return _totals(gaps, jnp.stack([row * x, row], axis=-1))

        sums = lax.map(jax.checkpoint(of_rank, prevent_cse=False), some)
        return sums[..., 0].T, sums[..., 1].T

    def transposed_times(r: Table) -> Floats:
        def add(total: Floats, rank_and_r: tuple) -> tuple[Floats, None]:
            rank, r = rank_and_r
            return total + weights(rank) * of_list(r, gaps.segments, 0.0), None

        return lax.scan(jax.checkpoint(add, prevent_cse=False), jnp.zeros_like(gaps.gap), (some, r.T))[0]

    return Band(times, transposed_times)


def _neural_weights(gaps: FlatGaps, tie_term: Floats, rank: Int[Array, ""]) -> Floats:
    """`exp(L_i(d))`, see `_band`, of one row of every list, relative to its own peak: no digit is lost."""
    distance = gaps.ranks - rank
    step = jnp.abs(2 * distance - 1).astype(gaps.gap.dtype) * gaps.gap
    below, above = jnp.where(distance > 0, step, 0), jnp.where(distance <= 0, step, 0)
    begins = jnp.where(gaps.ranks == 0, jnp.inf, jnp.zeros_like(step))
    ends = jnp.concatenate([begins[1:], jnp.zeros_like(begins[:1])])
    curve = below + _laplace.recurrence(below, begins) + _laplace.recurrence(above[::-1], ends[::-1])[::-1]
    live = gaps.live & (of_list(gaps.counts, gaps.segments, 0) > rank)
    return jnp.exp(jnp.where(live, tie_term - curve, -jnp.inf))


def _tie_term(gaps: FlatGaps) -> Floats:
    """`_band`'s: `sum_j (ds_j - ds_d) / t` over the items tied with d before it, less the same sum over those after."""

    def term(tied: Floats) -> Floats:
        first, last = tied_groups(gaps.starts)
        place = lax.broadcasted_iota(jnp.int32, first.shape, 0)
        before, after = _laplace.sums_beside(tied, jnp.where(gaps.starts, jnp.inf, jnp.zeros_like(tied)))
        return before - after + (first + last - 2 * place).astype(tied.dtype) * tied

    return lax.cond(any_list(~gaps.starts).any(), term, jnp.zeros_like, gaps.tied)


def _totals(gaps: FlatGaps, values: Float[Array, "rows 2"]) -> Float[Array, "segments 2"]:
    return jax.ops.segment_sum(values, gaps.segments, gaps.counts.shape[0], indices_are_sorted=True)


# ------------------------------------------------------------------------------------------------------------ SoftSort


def soft_band(gaps: FlatGaps, k: int) -> Band:
    """All lists as one, so far apart that they weigh nothing to one another."""
    band = laplace_band(_kernel(gaps), gaps.live, gaps.gap.shape[0])
    rank = lax.broadcasted_iota(jnp.int32, (gaps.counts.shape[0], k), 1)
    within = rank < gaps.counts[:, None]
    place = jnp.where(within, gaps.places[:, None] + rank, 0)

    def times(x: Floats) -> tuple[Table, Table]:
        weighed, weight = band.times(x)
        return jnp.where(within, weighed[place], 0), jnp.where(within, weight[place], 0)

    def transposed_times(r: Table) -> Floats:
        return band.transposed_times(jnp.zeros_like(gaps.gap).at[place].add(jnp.where(within, r, 0)))

    return Band(times, transposed_times)


def _kernel(gaps: FlatGaps) -> _laplace.Kernel:
    """`_laplace.kernel`, with the distances inside a tied group from the group alone."""
    first, last = tied_groups(gaps.starts)
    total = jnp.zeros_like(gaps.tied).at[first].add(gaps.tied)
    mean = total[first] / (last - first + 1).astype(total.dtype)
    apart = jnp.asarray(-1.2 * np.log(np.finfo(gaps.gap.dtype).tiny), gaps.gap.dtype)
    gap = jnp.where(gaps.ranks == 0, apart, gaps.gap)
    return _laplace.Kernel(gap, gaps.starts, first, last, -gaps.tied, gaps.tied - gaps.tied[last], mean - gaps.tied)
