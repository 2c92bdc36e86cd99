"""SoftSort's rows: row i weighs item j by `exp(-|s_(i) - s_j| / t)`, and its first few rows need no sort.

Seen from rank i, an item at or below c, the last of the k places, is farther than c:
`exp(-(s_(i) - c) / t) exp(-(c - s_j) / t)`. So one exponential an item serves all rows, and only the items above c
are compared with each place.

A place moves with the mean of the items tied there, and has no derivative by any one of them: that of |x| at 0 is 0.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrank import _laplace, ordering
from jaxrank._band import Band, matrix
from jaxrank._gaps import scaled
from jaxrank._typing import Indices, Lists, Mask, Ranked, Size

Temperature = Float[Array, "*#batch 1"]


def rows(
    place: Ranked, values: Ranked, scores: Lists, keys: Lists, temperature: Temperature
) -> Float[Array, "*batch k n"]:
    """Weights of items between places, of which `values` are the scores without a derivative."""
    tied = values[..., :, None] == keys[..., None, :]
    live = (values > -jnp.inf)[..., :, None] & (keys > -jnp.inf)[..., None, :]
    distance = jnp.abs(jnp.where(live & ~tied, place[..., :, None] - scores[..., None, :], 1))
    weights = jnp.exp(-scaled(distance, temperature[..., None]))
    return jnp.where(live, jnp.where(tied, 1, weights), 0)


def mean_move(tied: Bool[Array, "*#batch k n"], scores: Lists) -> Ranked:
    """Zeros with the derivative of the mean score of the items tied with each place."""
    share = tied.astype(scores.dtype)
    share = share / jnp.maximum(share.sum(axis=-1, keepdims=True), 1)
    return _zero_sum(share, scores[..., None, :])


@jax.custom_jvp
def _zero_sum(weights: Float[Array, "..."], scores: Float[Array, "..."]) -> Float[Array, "..."]:
    """Zeros with the derivative of `(weights * scores).sum(-1)` by the scores."""
    return jnp.zeros_like((weights * scores).sum(axis=-1))


@_zero_sum.defjvp
def _zero_sum_jvp(primals, tangents):
    return _zero_sum(*primals), (primals[0] * tangents[1]).sum(axis=-1)


def is_few(k: Size, n: Size) -> bool:
    """Whether k places are compared in pairs faster than a list of n is sorted.

    Measured, ms, value and gradient against sums along the sorted list: 64 x 2048, k = 10 1.1 against 38, k = 100 3.4
    against 33; 1024 x 128, k = 10 4.2 against 32, k = 32 7.2 against 32; 1 x 100 000, k = 100 0.8 against 29.
    """
    if not (isinstance(k, int) and isinstance(n, int)):
        return True  # symbolic sizes cannot be cut into the blocks of the other way
    return k <= 32 or k * k <= 8 * n


def few_rows(
    scores: Lists, keys: Lists, temperature: Temperature, k: int
) -> tuple[Band, Indices, Bool[Array, "*#batch slots"]]:
    """The first k rows of lists of n, as a band of k + n columns: the best items, then all items as they stand.

    An item above the last place counts among the first ones, any other among the second ones: the mask says which do.
    """
    values, indices = ordering.top_k(keys, k)
    best, live = ordering.take(scores, indices), values > -jnp.inf
    last = jnp.where(live, values, jnp.inf).min(axis=-1, keepdims=True, initial=jnp.inf)
    above, at_last, below, tied = values > last, values == last, (keys > -jnp.inf) & (keys <= last), keys == last

    moved = mean_move(tied[..., None, :], scores)
    place = values + jnp.where(above, mean_move(values[..., :, None] == values[..., None, :], best), moved)
    head = matrix(rows(place, values, best, jnp.where(above, values, -jnp.inf), temperature))
    ahead = jnp.where(live, jnp.exp(-scaled(jnp.where(live, place - last, 0), temperature)), 0)
    tail = jnp.where(below, jnp.exp(-scaled(jnp.where(below, last - scores, 0), temperature)), 0)
    strict, equal = jnp.where(tied, 0, tail), jnp.where(tied, tail, 0)
    # A place and an item that both stand at the last have the weight 1, without a derivative.
    at_one = tied.astype(tail.dtype)

    def times_tail(x: Lists) -> Ranked:
        lower, same, one = ((weights * x).sum(axis=-1, keepdims=True) for weights in (strict, equal, at_one))
        return ahead * lower + jnp.where(at_last, one, ahead * same)

    def times(x: Lists) -> tuple[Ranked, Ranked]:
        first, rest = x[..., :k], x[..., k:]
        by_x, by_ones = head.times(first)
        return by_x + times_tail(rest), by_ones + times_tail(jnp.ones_like(rest))

    def transposed_times(r: Ranked) -> Lists:
        of_all, of_last, of_above = (
            part.sum(axis=-1, keepdims=True)
            for part in (ahead * r, jnp.where(at_last, r, 0), jnp.where(at_last, 0, ahead * r))
        )
        of_tail = of_all * strict + of_above * equal + of_last * at_one
        return jnp.concatenate([head.transposed_times(r), of_tail], axis=-1)

    return Band(times, transposed_times), indices, jnp.concatenate([above, below], axis=-1)


def laplace_band(kernel: _laplace.Kernel, ranked: Mask, k: int) -> Band:
    """The first k rows of a sorted list."""
    live = ranked.astype(kernel.gap.dtype)

    def times(x: Lists) -> tuple[Ranked, Ranked]:
        # One recurrence for both products, which stand on a leading axis.
        wide = jax.tree.map(lambda array: array[None], kernel)
        sums = _laplace.times(wide, jnp.stack([x * live, live]))[..., :k] * live[None, ..., :k]
        return sums[0], sums[1]

    def transposed_times(r: Ranked) -> Lists:
        padding = [(0, 0)] * (r.ndim - 1) + [(0, live.shape[-1] - k)]
        return _laplace.transposed_times(kernel, jnp.pad(r * live[..., :k], padding)) * live

    return Band(times, transposed_times)
