"""The exact metric: NDCG@K and its two halves, DCG@K and the ideal DCG@K.

A metric is three steps: gains in some order (`ordering`, or a relaxation), the dot product with the discounts, and
the ratio to the same product of the ideal order. The surrogates change the first step alone and share the others.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from jaxrank import _arrays, ordering
from jaxrank._devices import split_by_list
from jaxrank._keywords import named_keywords
from jaxrank._typing import ArrayLike, Cutoffs, DiscountFn, GainFn, Lists, Mask, Ranked, Values
from jaxrank.discounts import log2_discount
from jaxrank.gains import exponential_gain, gain_shift, is_monotone, power_of_two, shifted_gain

TIE_RULES = ("average", "stable", "best", "worst")


@named_keywords
def ndcg_at_k(
    scores: ArrayLike,
    labels: ArrayLike,
    k: Cutoffs = None,
    *,
    where: ArrayLike = None,
    gain_fn: GainFn = exponential_gain,
    discount_fn: DiscountFn = log2_discount,
    ties: str = "average",
    empty: ArrayLike = 0.0,
    ideal_labels: ArrayLike = None,
    axis: int = -1,
    keepdims: bool = False,
) -> Float[Array, "..."]:
    """Normalised discounted cumulative gain of each list's first k ranks, in [0, 1].

    `NDCG@k = DCG@k / ideal DCG@k`, with `DCG@k = sum_{i=1..k} gain(label of rank i) * discount(i)` and the ideal taken
    over the whole list. With the defaults the gain is `2^label - 1` and the discount `1 / log2(i + 1)`.

    Args:
      scores: `[..., n]`, the model's scores, any real dtype; the highest ranks first. -inf: judged but not retrieved
        (no rank, still in the ideal). NaN in a valid slot makes that list's value NaN.
      labels: `[..., n]`, relevance grades; negative ones count as not relevant. Batch axes broadcast with those of
        `scores`.
      k: cutoff, an int; None for the whole list; or a tuple of ints, which costs one selection for all of them.
      where: `[..., n]`, true for real items and false for padding, which reaches neither value nor gradient.
      gain_fn: label -> gain: `exponential_gain`, `linear_gain`, `table_gain(values)` or any elementwise function.
      discount_fn: 1-based rank -> discount: `log2_discount`, `reciprocal_discount`, `geometric_discount(p)` or any.
      ties: what tied scores mean: "average" the expectation over random orders, "stable" input order, "best" and
        "worst" the tie ordered by gain.
      empty: the value of a list without a relevant item; any float, NaN included.
      ideal_labels: `[..., m]`, the labels of all judged items where `labels` holds only some of them; padded with 0.
        A ratio above 1 shows that they were not all there, and is returned as NaN.
      axis: the list axis.
      keepdims: keep the list axis, with length 1.

    Returns:
      One value a list, `[...]`: float32, or float64 if an input is 64 bits wide. With a tuple `k` the list axis stays,
      with one entry a cutoff. Nothing is reduced over the batch. The gradient by `scores` is zero (see
      `smooth_ndcg_at_k` for one that is not), by `labels` it is that of the formula.

    Raises:
      ValueError: if the list lengths differ, the batch axes do not broadcast, a cutoff is below 1, or `ties` is not
        one of the four.
      TypeError: if `k` is traced or not an int, or an input does not hold real numbers.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxrank
      >>> scores = jnp.array([[0.2, 0.9, 0.1], [0.5, 0.5, 0.5]])
      >>> labels = jnp.array([[1, 2, 0], [1, 2, 0]])
      >>> jaxrank.ndcg_at_k(scores, labels, 2)
      Array([1. , 0.5989...], dtype=float32)

    References:
      Jarvelin and Kekalainen (2002), Cumulated gain-based evaluation of IR techniques; Burges et al. (2005), Learning
      to rank using gradient descent (the gain); McSherry and Najork (2008), Computing information retrieval
      performance measures efficiently in the presence of tied scores.
    """
    return _ndcg(
        *_check(scores, labels, where, gain_fn, discount_fn, ties),
        _arrays.as_optional("ideal_labels", ideal_labels),
        _arrays.check_number("empty", empty),
        _arrays.check_cutoffs(k),
        gain_fn,
        discount_fn,
        ties,
        axis,
        keepdims,
    )


@partial(jax.jit, static_argnums=range(5, 11), inline=True)
@split_by_list
def _ndcg(scores, labels, where, ideal_labels, empty, k, gain_fn, discount_fn, ties, axis, keepdims):
    scores, labels, where = _arrays.as_lists(scores, labels, where, axis)
    judged = labels if ideal_labels is None else _arrays.as_list("ideal_labels", ideal_labels, labels, axis)
    weigh = scaled_gain(gain_fn, judged, where if ideal_labels is None else None)
    best = ideal_gains(weigh, judged, k)
    keys = ordering.rank_keys(scores, where, ties=ties)
    ranked = ordering.ranked_gains(keys, labels, weigh.gain, _arrays.depth(k, labels.shape[-1]), ties)
    dcg, ideal = discounted(ranked, discount_fn, k), discounted(best, discount_fn, k)
    if ideal_labels is None:
        dcg = at_most(ideal, dcg, perfect=first_ranks(ranked == best, k, jnp.all))
    else:
        dcg = _within_ideal(dcg, ideal, ordering.has_nan(_arrays.masked(labels, where, 0.0)))
    values = poison(_arrays.safe_divide(dcg, ideal, jnp.asarray(empty)), ordering.has_nan(keys))
    return _arrays.restore_axis(values, k, axis, keepdims)


def at_most(ideal: Values, dcg: Values, perfect: Bool[Array, "*batch c"]) -> Values:
    """Two sums of the same gains may round differently; yet no ratio is above 1, and that of a perfect order is 1.

    The gradient stays that of the DCG.
    """
    target = jnp.where(perfect, ideal, jnp.minimum(dcg, ideal))
    return dcg + jax.lax.stop_gradient(target - dcg)  # exact, since the two lie within a factor of 2 where they differ


def _within_ideal(dcg: Values, ideal: Values, bad_label: Bool[Array, "*batch 1"]) -> Values:
    """A DCG above the ideal of given `ideal_labels` shows that a relevant item was missing there: no number, NaN."""
    slack = jnp.asarray(1 + 1e-5, ideal.dtype)
    return poison(jnp.where(dcg > ideal * slack, jnp.nan, jnp.minimum(dcg, ideal)), bad_label)


@named_keywords
def dcg_at_k(
    scores: ArrayLike,
    labels: ArrayLike,
    k: Cutoffs = None,
    *,
    where: ArrayLike = None,
    gain_fn: GainFn = exponential_gain,
    discount_fn: DiscountFn = log2_discount,
    ties: str = "average",
    axis: int = -1,
    keepdims: bool = False,
) -> Float[Array, "..."]:
    """Discounted cumulative gain of each list's first k ranks.

    `DCG@k = sum_{i=1..k} gain(label of rank i) * discount(i)`.

    Args:
      scores: `[..., n]`, the model's scores, as in `ndcg_at_k`.
      labels: `[..., n]`, relevance grades.
      k: cutoff, an int; None for the whole list; or a tuple of ints.
      where: `[..., n]`, true for real items, false for padding.
      gain_fn: label -> gain.
      discount_fn: 1-based rank -> discount.
      ties: "average", "stable", "best" or "worst".
      axis: the list axis.
      keepdims: keep the list axis, with length 1.

    Returns:
      One value a list, as `ndcg_at_k`; at most the dtype's largest finite number.

    Raises:
      ValueError, TypeError: as `ndcg_at_k`.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxrank
      >>> jaxrank.dcg_at_k(jnp.array([3.0, 1.0, 2.0]), jnp.array([1, 1, 2]), 2)
      Array(2.8927..., dtype=float32)

    References:
      Jarvelin and Kekalainen (2002), Cumulated gain-based evaluation of IR techniques.
    """
    return _dcg(
        *_check(scores, labels, where, gain_fn, discount_fn, ties),
        _arrays.check_cutoffs(k),
        gain_fn,
        discount_fn,
        ties,
        axis,
        keepdims,
    )


@partial(jax.jit, static_argnums=range(3, 9), inline=True)
@split_by_list
def _dcg(scores, labels, where, k, gain_fn, discount_fn, ties, axis, keepdims):
    scores, labels, where = _arrays.as_lists(scores, labels, where, axis)
    weigh = scaled_gain(gain_fn, labels, where)
    keys = ordering.rank_keys(scores, where, ties=ties)
    ranked = ordering.ranked_gains(keys, labels, weigh.gain, _arrays.depth(k, labels.shape[-1]), ties)
    values = unscaled(discounted(ranked, discount_fn, k), weigh)
    return _arrays.restore_axis(poison(values, ordering.has_nan(keys)), k, axis, keepdims)


@named_keywords
def ideal_dcg_at_k(
    labels: ArrayLike,
    k: Cutoffs = None,
    *,
    where: ArrayLike = None,
    gain_fn: GainFn = exponential_gain,
    discount_fn: DiscountFn = log2_discount,
    axis: int = -1,
    keepdims: bool = False,
) -> Float[Array, "..."]:
    """The largest DCG@k that any order of each list has: its k largest gains, descending.

    `ideal DCG@k = sum_{i=1..k} (i-th largest gain) * discount(i)`.

    Args:
      labels: `[..., n]`, relevance grades.
      k: cutoff, an int; None for the whole list; or a tuple of ints.
      where: `[..., n]`, true for real items, false for padding.
      gain_fn: label -> gain.
      discount_fn: 1-based rank -> discount.
      axis: the list axis.
      keepdims: keep the list axis, with length 1.

    Returns:
      One value a list, as `ndcg_at_k`; 0 where nothing is relevant; at most the dtype's largest finite number.

    Raises:
      ValueError, TypeError: as `ndcg_at_k`.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxrank
      >>> jaxrank.ideal_dcg_at_k(jnp.array([0, 2, 1]), 1)
      Array(3., dtype=float32)

    References:
      Jarvelin and Kekalainen (2002), Cumulated gain-based evaluation of IR techniques.
    """
    check_functions(gain_fn, discount_fn)
    return _ideal_dcg(
        _arrays.as_array("labels", labels),
        _arrays.as_mask(where),
        _arrays.check_cutoffs(k),
        gain_fn,
        discount_fn,
        axis,
        keepdims,
    )


@partial(jax.jit, static_argnums=range(2, 7), inline=True)
@split_by_list
def _ideal_dcg(labels, where, k, gain_fn, discount_fn, axis, keepdims):
    _, labels, where = _arrays.as_lists(labels, labels, where, axis)
    weigh = scaled_gain(gain_fn, labels, where)
    values = unscaled(discounted(ideal_gains(weigh, labels, k), discount_fn, k), weigh)
    return _arrays.restore_axis(values, k, axis, keepdims)


@named_keywords
def ranked_ndcg_at_k(
    relevance: ArrayLike,
    k: Cutoffs = None,
    *,
    where: ArrayLike = None,
    gain_fn: GainFn = exponential_gain,
    discount_fn: DiscountFn = log2_discount,
    empty: ArrayLike = 0.0,
    ideal_labels: ArrayLike = None,
    axis: int = -1,
    keepdims: bool = False,
) -> Float[Array, "..."]:
    """NDCG@k of relevance that is already in ranked order, best-ranked first.

    `ndcg_at_k` with the position as the score: `sum_{i=1..k} gain(relevance_i) * discount(i)` over its ideal. A masked
    slot takes no rank.

    Args:
      relevance: `[..., n]`, the grades of the retrieved items in the order they were shown.
      k: cutoff, an int; None for the whole list; or a tuple of ints.
      where: `[..., n]`, true for real items, false for padding.
      gain_fn: label -> gain.
      discount_fn: 1-based rank -> discount.
      empty: the value of a list without a relevant item.
      ideal_labels: `[..., m]`, the labels of all judged items, where more were judged than retrieved; padded with 0.
      axis: the list axis.
      keepdims: keep the list axis, with length 1.

    Returns:
      One value a list, as `ndcg_at_k`.

    Raises:
      ValueError, TypeError: as `ndcg_at_k`.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxrank
      >>> jaxrank.ranked_ndcg_at_k(jnp.array([3, 2, 3, 0, 1, 2]), gain_fn=jaxrank.linear_gain)
      Array(0.9608..., dtype=float32)

    References:
      Jarvelin and Kekalainen (2002), Cumulated gain-based evaluation of IR techniques.
    """
    relevance = _arrays.as_array("relevance", relevance)
    # Positions as scores, each list axis's own length: integers keep their exact order however long the list is.
    positions = _arrays.positions_along(relevance, axis)
    return ndcg_at_k(
        positions,
        relevance,
        k,
        where=where,
        gain_fn=gain_fn,
        discount_fn=discount_fn,
        ties="stable",
        empty=empty,
        ideal_labels=ideal_labels,
        axis=axis,
        keepdims=keepdims,
    )


def _check(scores, labels, where, gain_fn, discount_fn, ties):
    check_functions(gain_fn, discount_fn)
    _arrays.check_option("ties", ties, TIE_RULES)
    return _arrays.as_array("scores", scores), _arrays.as_array("labels", labels), _arrays.as_mask(where)


def check_functions(gain_fn: object, discount_fn: object) -> None:
    _arrays.check_function("gain_fn", gain_fn)
    _arrays.check_function("discount_fn", discount_fn)


# ------------------------------------------------------------------------------- the parts that the surrogates share


class ScaledGain(NamedTuple):
    """`gain(labels) = gain_fn(labels) / 2^shift`: a ratio of sums of it neither overflows nor underflows."""

    gain: ordering.Gain
    shift: Float[Array, "*batch 1"]
    keys: Float[Array, "*batch n"]  # in the order of the gains; -inf where masked
    gain_of_key: ordering.Gain


def scaled_gain(gain_fn: GainFn, labels: Lists, where: Mask | None) -> ScaledGain:
    """The gain function of each list, scaled by its own largest gain. A NaN among the labels makes every gain NaN."""
    keys = gain_keys(gain_fn, labels, where)
    peak = keys.max(axis=-1, keepdims=True, initial=-jnp.inf)
    return scaled_by(poison(gain_shift(gain_fn, peak), ordering.has_nan(keys)), gain_fn, keys)


def gain_keys(gain_fn: GainFn, labels: Lists, where: Mask | None) -> Lists:
    """What orders items by gain: for a monotone one the labels, so that few gains need be computed."""
    keys = labels if is_monotone(gain_fn) else gain_fn(_arrays.masked(labels, where, 0.0))
    return _arrays.masked(keys, where, -jnp.inf)


def scaled_by(shift: Float[Array, "..."], gain_fn: GainFn, keys: Lists) -> ScaledGain:
    gain = partial(shifted_gain, gain_fn, shift=shift)
    of_key = gain if is_monotone(gain_fn) else partial(jnp.multiply, power_of_two(-shift))
    return ScaledGain(gain, shift, keys, of_key)


def ideal_gains(weigh: ScaledGain, labels: Lists, k: Cutoffs) -> Ranked:
    """The largest scaled gains of each list, descending, as many as the deepest cutoff reads."""
    keys = ordering.largest(weigh.keys, _arrays.depth(k, labels.shape[-1]))
    # The selection drops a NaN on CPU: among labels that are all NaN or masked it leaves none.
    return poison(ordering.valid_gains(keys, keys > -jnp.inf, weigh.gain_of_key), jnp.isnan(weigh.shift))


def discounted(ranked: Ranked, discount_fn: DiscountFn, k: Cutoffs) -> Float[Array, "*batch c"]:
    """`sum_{i<=c} ranked_i * discount(i)` for each cutoff c: the one accumulation, in float32 or float64."""
    ranks = jnp.arange(1, ranked.shape[-1] + 1, dtype=ranked.dtype)
    return first_ranks(ranked * _arrays.expand(discount_fn(ranks), ranked.ndim), k, jnp.sum)


def first_ranks(values: Shaped[Array, "*batch k"], k: Cutoffs, reduce_fn: Callable) -> Shaped[Array, "*batch c"]:
    """`reduce_fn` of the first c ranks for each cutoff c."""
    cutoffs = _arrays.cutoff_list(k, values.shape[-1])
    return jnp.stack([reduce_fn(values[..., :cutoff], axis=-1) for cutoff in cutoffs], axis=-1)


def unscaled(values: Float[Array, "*batch c"], weigh: ScaledGain) -> Float[Array, "*batch c"]:
    """A DCG in its own units again, saturating at the largest finite number."""
    values, largest = values * power_of_two(weigh.shift), jnp.finfo(values.dtype).max
    return jnp.where(values > largest, jnp.full_like(values, largest), values)  # `minimum` drops NaN on CPU


def poison(values: Float[Array, "*#batch c"], bad: Bool[Array, "*#batch 1"]) -> Float[Array, "*batch c"]:
    """NaN in, NaN out: a list with a NaN in a valid slot has no number. (A NaN label shows in the ideal.)"""
    return jnp.where(bad, jnp.asarray(jnp.nan, values.dtype), values)
