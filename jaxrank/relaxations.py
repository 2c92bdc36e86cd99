"""Scores -> a relaxed order: the rows of a relaxed permutation matrix, what they rank, and soft ranks.

`neural_sort` and `soft_sort` build their rows. The surrogates never do: they want the gains at the first ranks, and
both relaxations have a fused path to them that needs memory in O(n).
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import core, lax
from jaxtyping import Array, Bool, Float, Int

from jaxrank import _arrays, _band, _laplace, _softsort, ordering
from jaxrank._band import Band
from jaxrank._devices import split_by_list
from jaxrank._gaps import KEPT, Gaps, any_list, positive, ranked_gaps
from jaxrank._keywords import named_keywords
from jaxrank._typing import ArrayLike, GainFn, Lists, Mask, Ranked, Relaxation
from jaxrank.gains import shifted_gain

Temperature = Float[Array, "*#batch 1"]
Rows = Float[Array, "*batch k n"]

KERNELS = ("logistic", "laplace")
CHUNK = 2**13  # scores that are ranked together on CPU
BLOCK = 16  # items that are compared with all others at once


@named_keywords
def neural_sort(
    scores: ArrayLike, *, k: int | None = None, where: ArrayLike = None, temperature: ArrayLike = 1.0
) -> Float[Array, "*batch k n"]:
    """The first k rows of NeuralSort's relaxed permutation matrix.

    Row i (from 0) is the softmax over j of `((n - 1 - 2 i) s_j - sum_l |s_j - s_l|) / temperature`: where the item of
    rank i + 1 is likely to stand. As the temperature falls, the rows become those of the sorting permutation, with
    tied items sharing their ranks equally.

    Args:
      scores: `[..., n]`; the highest ranks first. -inf: not retrieved, so in no row.
      k: how many rows; None for all.
      where: `[..., n]`, true for real items, false for padding.
      temperature: positive; a scalar, or one for each list, `[...]`. The weights fall off with the square of the
        distance in rank, so that a low one never lifts an item from far below: anneal it, or let it grow with n.

    Returns:
      `[..., k, n]`; each row sums to 1 over the real items, and is 0 where there are fewer than its rank.

    Raises:
      ValueError: if k is below 1, or the temperature is known and not positive (NaN results if it is traced).

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxrank
      >>> jaxrank.neural_sort(jnp.array([0.0, 2.0, 1.0]), k=1)
      Array([[0.013..., 0.721..., 0.265...]], dtype=float32)

    References:
      Grover et al. (2019), Stochastic optimization of sorting networks via continuous relaxations.
    """
    return _relaxed_rows(*_check_rows(scores, k, where, temperature), neural_sort)


@named_keywords
def soft_sort(
    scores: ArrayLike, *, k: int | None = None, where: ArrayLike = None, temperature: ArrayLike = 1.0
) -> Float[Array, "*batch k n"]:
    """The first k rows of SoftSort's relaxed permutation matrix.

    Row i is the softmax over j of `-|s_(i) - s_j| / temperature`, with `s_(i)` the score of rank i.

    The gradient at fully tied scores is zero in every direction: start from random weights, or break ties with
    `gumbel_perturb`.

    Args:
      scores: `[..., n]`; the highest ranks first. -inf: not retrieved, so in no row.
      k: how many rows; None for all.
      where: `[..., n]`, true for real items, false for padding.
      temperature: positive; a scalar, or one for each list, `[...]`.

    Returns:
      `[..., k, n]`; each row sums to 1 over the real items, and is 0 where there are fewer than its rank.

    Raises:
      ValueError: if k is below 1, or the temperature is known and not positive (NaN results if it is traced).

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxrank
      >>> jaxrank.soft_sort(jnp.array([0.0, 2.0, 1.0]), k=1)
      Array([[0.090..., 0.665..., 0.244...]], dtype=float32)

    References:
      Prillo and Eisenschlos (2020), SoftSort: a continuous relaxation for the argsort operator.
    """
    return _relaxed_rows(*_check_rows(scores, k, where, temperature), soft_sort)


@named_keywords
def soft_ranks(
    scores: ArrayLike, *, where: ArrayLike = None, temperature: ArrayLike = 1.0, kernel: str = "logistic"
) -> Lists:
    """A differentiable rank, from 1, for each item.

    `rank_i = 1 + sum_{j != i} F((s_j - s_i) / temperature)`, with F the distribution function of the logistic or the
    Laplace distribution. As the temperature falls it becomes the rank; tied items have the mean of their ranks.

    Args:
      scores: `[..., n]`; the highest ranks first. -inf: not retrieved.
      where: `[..., n]`, true for real items, false for padding.
      temperature: positive; a scalar, or one for each list, `[...]`.
      kernel: "logistic" compares all pairs, in blocks; "laplace" needs O(n log n) time and O(n) memory.

    Returns:
      `[..., n]`, in the order of the scores; inf for an item that has no rank.

    Raises:
      ValueError: if the kernel is neither, or the temperature is known and not positive (NaN if it is traced).

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxrank
      >>> jaxrank.soft_ranks(jnp.array([0.0, 2.0, 1.0]), temperature=0.5)
      Array([2.862..., 1.137..., 2.   ...], dtype=float32)

    References:
      Qin et al. (2010), A general approximation framework for direct optimization of information retrieval measures;
      Struski et al. (2025), LapSum.
    """
    _arrays.check_option("kernel", kernel, KERNELS)
    return _soft_ranks(*_check(scores, where, temperature), kernel)


# ------------------------------------------------------------------------------------------------------- the border


def check_temperature(temperature: ArrayLike) -> ArrayLike:
    """A positive number or array of them. A traced one cannot be looked at: where it is not positive, NaN results."""
    temperature = _arrays.check_number("temperature", temperature)
    if not isinstance(temperature, core.Tracer) and not np.all(np.asarray(temperature) > 0):
        raise ValueError(f"temperature must be positive; got {temperature}. The exact metric is `ndcg_at_k`.")
    return temperature


def _check(scores: ArrayLike, where: ArrayLike, temperature: ArrayLike) -> tuple:
    return _arrays.as_array("scores", scores), _arrays.as_mask(where), check_temperature(temperature)


def _check_rows(scores: ArrayLike, k: int | None, where: ArrayLike, temperature: ArrayLike) -> tuple:
    if isinstance(k, tuple):
        raise TypeError(f"k must be None or an int here, since it is a number of rows; got {k}.")
    return *_check(scores, where, temperature), _arrays.check_cutoffs(k)


def list_temperature(temperature: Array, scores: Lists) -> Float[Array, "*#batch 1"]:
    """One temperature a list, beside the list axis."""
    temperature = jnp.asarray(temperature, scores.dtype)
    batch = scores.shape[:-1]
    try:
        fits = jnp.broadcast_shapes(temperature.shape, batch) == batch
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"temperature must be a scalar or one for each list, {batch}; got shape {temperature.shape}.")
    return _arrays.expand(temperature, len(batch))[..., None]


# --------------------------------------------------------------------------------------------------------------- rows


class RankedLists(NamedTuple):
    scores: Lists  # anything in a slot that has no rank: few items are taken, and a masked copy of all costs as much
    keys: Lists  # -inf there
    temperature: Temperature


def ranked_lists(scores: Lists, where: Mask | None, temperature: Array) -> RankedLists:
    keys = _arrays.wide(ordering.rank_keys(scores, where))
    return RankedLists(scores.astype(keys.dtype), keys, list_temperature(temperature, keys))


def filled(scores: Lists, keys: Lists) -> Lists:
    """Scores that are 0, without a gradient, in a slot that has no rank."""
    return jnp.where(keys > -jnp.inf, scores, jnp.zeros_like(keys))


def without_value(keys: Lists, temperature: Temperature) -> Bool[Array, "*batch 1"]:
    """Whether no relaxation has a value: a list that holds NaN or +inf, or a temperature that is not positive."""
    finite = keys.max(axis=-1, keepdims=True, initial=-jnp.inf) < jnp.inf
    return ~finite | jnp.isnan(positive(temperature))


@partial(jax.jit, static_argnums=(3, 4), inline=True)
@partial(split_by_list, own_axes=2)
def _relaxed_rows(scores, where, temperature, k, relaxation):
    lists = _score_lists(scores, where, temperature)
    rows = _neural_rows if relaxation is neural_sort else _soft_rows
    weights = rows(*lists, _arrays.depth(k, lists.keys.shape[-1]))
    bad = without_value(lists.keys, lists.temperature)[..., None]
    return jnp.where(bad, jnp.nan, _ratio(weights, weights.sum(axis=-1, keepdims=True)))


def _score_lists(scores, where, temperature) -> RankedLists:
    _, scores, where = _arrays.as_lists(scores, scores, where, -1)  # the second ones are cast
    return ranked_lists(scores, where, temperature)


def _neural_rows(scores: Lists, keys: Lists, temperature: Temperature, k: int) -> Rows:
    gaps = ranked_gaps(scores, keys, temperature, keys.shape[-1])
    return ordering.take(_band.all_rows(gaps, k), _inverse(gaps.indices)[..., None, :])


@partial(jnp.vectorize, signature="(n)->(n)")
def _inverse(permutation: Int[Array, " n"]) -> Int[Array, " n"]:
    position = lax.iota(permutation.dtype, permutation.shape[0])
    return jnp.zeros_like(permutation).at[permutation].set(position, unique_indices=True)


def _soft_rows(scores: Lists, keys: Lists, temperature: Temperature, k: int) -> Rows:
    values = ordering.top_k(keys, k)[0]
    place = values + _softsort.mean_move(values[..., :, None] == keys[..., None, :], scores)
    return _softsort.rows(place, values, scores, keys, temperature)


def _ratio(numerator: Float[Array, "..."], denominator: Float[Array, "..."]) -> Float[Array, "..."]:
    """0 in a row without an item."""
    return _arrays.safe_divide(numerator, denominator, jnp.zeros((), denominator.dtype))


# --------------------------------------------------------------------------------------------------------- soft ranks


@partial(jax.jit, static_argnums=3, inline=True)
@partial(split_by_list, own_axes=1)
def _soft_ranks(scores, where, temperature, kernel):
    lists = _score_lists(scores, where, temperature)
    return jnp.where(without_value(lists.keys, lists.temperature), jnp.nan, kernel_ranks(*lists, kernel))


def kernel_ranks(scores: Lists, keys: Lists, temperature: Temperature, kernel: str) -> Lists:
    ranks = _logistic_ranks if kernel == "logistic" else _laplace_ranks
    return jnp.where(keys > -jnp.inf, ranks(scores, keys, temperature), jnp.inf)


def _laplace_ranks(scores: Lists, keys: Lists, temperature: Temperature) -> Lists:
    gaps = ranked_gaps(scores, keys, temperature, keys.shape[-1])
    live = gaps.live.astype(gaps.gap.dtype)
    before, after = _laplace.sums_beside(live, gaps.gap)
    position = lax.broadcasted_iota(jnp.int32, live.shape, live.ndim - 1).astype(live.dtype)
    ranks = 1 + position + (after - before) / 2
    return ordering.take(ranks, _inverse(gaps.indices))


def _logistic_ranks(scores: Lists, keys: Lists, temperature: Temperature) -> Lists:
    scores, live, temperature = filled(scores, keys), (keys > -jnp.inf)[..., None, :], positive(temperature)[..., None]

    def block(some: Lists) -> Lists:
        beaten = jax.nn.sigmoid((scores[..., None, :] - some[..., :, None]) / temperature)
        return 0.5 + jnp.where(live, beaten, 0).sum(axis=-1)  # an item beats itself by a half

    padding = [(0, 0)] * (scores.ndim - 1) + [(0, -scores.shape[-1] % BLOCK)]
    blocks = jnp.moveaxis(jnp.pad(scores, padding).reshape(*scores.shape[:-1], -1, BLOCK), -2, 0)
    ranks = jnp.moveaxis(lax.map(jax.checkpoint(block, prevent_cse=False), blocks), 0, -2)
    return ranks.reshape(*scores.shape[:-1], -1)[..., : scores.shape[-1]]


# -------------------------------------------------------------------------------------------------- gains at the ranks


class JudgedLists(NamedTuple):
    """Lists to be ranked; each array is one of lists, or of one number a list."""

    scores: Lists  # as in `RankedLists`
    keys: Lists
    temperature: Temperature
    labels: Lists
    shift: Float[Array, "*#batch 1"]  # as in `metrics.ScaledGain`


class Relaxed(NamedTuple):
    """How an order is relaxed, and what is ranked in it."""

    relaxation: Relaxation
    balance: int
    k: int
    gain_fn: GainFn


def ranked_gains(lists: JudgedLists, how: Relaxed) -> Ranked:
    """The relaxed gain at each of the first k ranks: the twin of `ordering.ranked_gains`."""
    shape = jnp.broadcast_shapes(lists.keys.shape, lists.labels.shape)  # many sets of labels may share their scores
    lists = lists._replace(scores=jnp.broadcast_to(lists.scores, shape), keys=jnp.broadcast_to(lists.keys, shape))
    if how.relaxation is neural_sort:
        return _neural_gains(lists, how)
    if how.relaxation is soft_sort:
        few = _softsort.is_few(how.k, lists.keys.shape[-1])
        return _few_soft_gains(lists, how) if few else _in_chunks(partial(_soft_gains, how=how), lists)
    live = lists.keys > -jnp.inf
    gains = ordering.valid_gains(lists.labels, live, partial(shifted_gain, how.gain_fn, shift=lists.shift))
    rows = how.relaxation(filled(lists.scores, lists.keys), k=how.k, where=live, temperature=lists.temperature[..., 0])
    return weighed(_band.matrix(rows), gains, live, how.balance)


def _in_chunks(function: Callable[[JudgedLists], Ranked], lists: JudgedLists) -> Ranked:
    """A few lists at a time, so that memory is bounded whatever the batch. What the way back needs is computed anew,
    the order apart.
    """
    policy = jax.checkpoint_policies.save_only_these_names(KEPT)
    function = jax.checkpoint(function, policy=policy, prevent_cse=False)
    *batch, n = lists.keys.shape
    if jax.default_backend() != "cpu" or not all(isinstance(size, int) for size in lists.keys.shape):
        return function(lists)  # accelerators have the memory, and want the whole batch at once
    total, devices = prod(batch), jax.device_count()
    size = -(-total // max(1, -(-total * n // CHUNK)))
    size = -(-size // devices) * devices
    chunks = -(-total // size)
    if chunks <= 1:
        return function(lists)

    # Every chunk takes lists from the whole batch: from every device, where that is split over devices. On one device
    # they lie together, since to take them apart is a copy.
    shape, axis = ((chunks, size), 0) if devices == 1 else ((size, chunks), 1)

    def split(array: Array) -> Array:
        flat = jnp.broadcast_to(array, (*batch, array.shape[-1])).reshape(total, -1)
        if total < size * chunks:  # a pad of nothing would still ask other devices for the edge
            flat = jnp.pad(flat, ((0, size * chunks - total), (0, 0)), mode="edge")
        return jnp.moveaxis(flat.reshape(*shape, flat.shape[-1]), axis, 0)

    ranked = jnp.moveaxis(lax.map(function, jax.tree.map(split, lists)), 0, axis)
    return ranked.reshape(-1, ranked.shape[-1])[:total].reshape(*batch, -1)


def _best(lists: JudgedLists, width: int, gain_fn: GainFn) -> tuple[Gaps, Lists]:
    gaps = ranked_gaps(lists.scores, lists.keys, lists.temperature, width)
    gain = partial(shifted_gain, gain_fn, shift=lists.shift)
    return gaps, ordering.gains_at(lists.labels, gaps.indices, gaps.live, gain)


def _neural_gains(lists: JudgedLists, how: Relaxed) -> Ranked:
    """From the best few items, and from all of them only if the rest of some list weighs more than rounding."""
    n = lists.keys.shape[-1]
    few = core.min_dim(how.k + _window(n), n)
    gaps, gains = _best(lists, few, how.gain_fn)
    ranked = weighed(_band.band(gaps, how.k, n), gains, gaps.live, how.balance)
    if few == n:
        return ranked
    uncertain = any_list(_band.reaches_beyond(gaps, how.k, n))[0]
    # Nothing is kept of the branch that is rarely taken: what it would keep is written as zeros where it is not.
    of_all = jax.checkpoint(partial(_in_chunks, partial(_neural_gains_of_all, how=how)), prevent_cse=False)
    return lax.cond(uncertain, lambda: of_all(lists), lambda: ranked)


def _neural_gains_of_all(lists: JudgedLists, how: Relaxed) -> Ranked:
    n = lists.keys.shape[-1]
    gaps, gains = _best(lists, n, how.gain_fn)
    return weighed(_band.band(gaps, how.k, n), gains, gaps.live, how.balance)


def _window(n: int) -> int:
    """Items beyond the last rank that suffice for normal scores at temperature 1, of lists up to 1e6 long."""
    return 11 * n.bit_length() // 2 if isinstance(n, int) else 96


def _soft_gains(lists: JudgedLists, how: Relaxed) -> Ranked:
    gaps, gains = _best(lists, lists.keys.shape[-1], how.gain_fn)
    return weighed(_softsort.laplace_band(_laplace.kernel(gaps), gaps.live, how.k), gains, gaps.live, how.balance)


def _few_soft_gains(lists: JudgedLists, how: Relaxed) -> Ranked:
    band, indices, live = _softsort.few_rows(filled(lists.scores, lists.keys), lists.keys, lists.temperature, how.k)
    gain, rest = partial(shifted_gain, how.gain_fn, shift=lists.shift), live[..., how.k :]
    first = ordering.gains_at(lists.labels, indices, live[..., : how.k], gain)
    gains = jnp.concatenate([first, ordering.valid_gains(lists.labels, rest, gain)], axis=-1)
    return weighed(band, gains, live, how.balance)


def weighed(band: Band, gains: Lists, live: Mask, balance: int) -> Ranked:
    """Rows that sum to 1 times the gains; with `balance`, columns that sum to 1 at most.

    One sweep normalises the rows, then scales each column to a sum of at most 1. Rows and columns are scaled only, so
    two vectors say all: the matrix stays as it is.
    """
    if balance == 0:
        return _ratio(*band.times(gains))

    def sweep(column: Lists, _: None) -> tuple[Lists, Ranked]:
        total = band.times(column)[0]
        row = _ratio(jnp.ones_like(total), total)
        mass = column * band.transposed_times(row)
        return column / jnp.where(mass > 1, mass, 1), row

    column, rows = lax.scan(sweep, live.astype(gains.dtype), length=balance)
    return rows[-1] * band.times(column * gains)[0]
