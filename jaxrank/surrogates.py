"""Smooth NDCG@K: the exact metric with a relaxed order in place of the hard one."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxrank import _arrays, metrics, ordering, relaxations
from jaxrank._devices import split_by_list
from jaxrank._keywords import named_keywords
from jaxrank._typing import ArrayLike, Checked, Cutoffs, DiscountFn, GainFn, Relaxation, Values
from jaxrank.discounts import log2_discount
from jaxrank.gains import exponential_gain
from jaxrank.relaxations import neural_sort


@named_keywords
def smooth_ndcg_at_k(
    scores: ArrayLike,
    labels: ArrayLike,
    k: Cutoffs = None,
    *,
    where: ArrayLike = None,
    temperature: ArrayLike = 1.0,
    relaxation: Checked = neural_sort,
    balance: Checked = 0,
    straight_through: bool = False,
    gain_fn: GainFn = exponential_gain,
    discount_fn: DiscountFn = log2_discount,
    empty: ArrayLike = 0.0,
    axis: int = -1,
    keepdims: bool = False,
) -> Float[Array, "..."]:
    """NDCG@k of a relaxed order: differentiable by the scores, and `ndcg_at_k` as the temperature falls to 0.

    `NDCG@k = sum_{i=1..k} r_i discount(i) / ideal DCG@k` with `r = P gains`, P the first k rows of a relaxed
    permutation matrix.

    Args:
      scores: `[..., n]`, floating point; the highest ranks first. -inf: judged but not retrieved. NaN or +inf in a
        valid slot makes that list's value NaN.
      labels: `[..., n]`, relevance grades; negative ones count as not relevant.
      k: cutoff, an int; None for the whole list; or a tuple of ints, which costs one relaxed order for all of them.
      where: `[..., n]`, true for real items and false for padding, which reaches neither value nor gradient.
      temperature: positive; a scalar, or one for each list, `[...]`. It is traced: annealing never recompiles. At a
        low one an item far below the cutoff has no gradient (NeuralSort reaches 20 ranks of 100 normal scores at 1,
        50 at 10): anneal it, or let it grow with the list length.
      relaxation: `neural_sort`, `soft_sort`, or any function of the same signature. The two take a fused path in O(n)
        memory at every k. SoftSort has no gradient at fully tied scores; NeuralSort learns slowly from them.
      balance: sweeps that cap the relaxed order's column sums at 1. Without, one item can fill several ranks, and the
        value can exceed 1; with 1 or more it cannot, and training reaches more (5 is a good number).
      straight_through: give the exact value, with the gradient of the smooth one.
      gain_fn: label -> gain.
      discount_fn: 1-based rank -> discount.
      empty: the value of a list without a relevant item, which has gradient 0.
      axis: the list axis.
      keepdims: keep the list axis, with length 1.

    Returns:
      One value a list, as `ndcg_at_k`. Gradients have the dtype of the scores.

    Raises:
      ValueError: if the shapes do not fit, a cutoff is below 1, `balance` is negative, or the temperature is known
        and not positive (NaN results if it is traced).
      TypeError: if `k` is traced or not an int, or an input does not hold real numbers.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import jaxrank
      >>> scores, labels = jnp.array([0.3, -0.1, 0.7, 0.2]), jnp.array([1, 0, 2, 3])
      >>> jaxrank.smooth_ndcg_at_k(scores, labels, 3)
      Array(0.706434..., dtype=float32)
      >>> jax.grad(jaxrank.smooth_ndcg_at_k)(scores, labels, 3)
      Array([-0.235..., -0.201..., -0.003...,  0.441...], dtype=float32)

    References:
      Grover et al. (2019), Stochastic optimization of sorting networks via continuous relaxations; Prillo and
      Eisenschlos (2020), SoftSort; Swezey et al. (2021), PiRank; Pobrotyn and Bialobrzeski (2021), NeuralNDCG.
    """
    return _smooth_ndcg(
        *check_inputs(scores, labels, where, temperature, gain_fn, discount_fn),
        _arrays.check_number("empty", empty),
        _arrays.check_cutoffs(k),
        *_check_relaxation(relaxation, balance, straight_through),
        gain_fn,
        discount_fn,
        axis,
        keepdims,
    )


@partial(jax.jit, static_argnums=range(5, 13), inline=True)
@split_by_list
def _smooth_ndcg(
    scores, labels, where, temperature, empty, k, relaxation, balance, through, gain_fn, discount_fn, axis, keepdims
):
    lists = judged_lists(scores, labels, where, temperature, gain_fn, axis)
    ideal = ideal_dcg(lists, k, discount_fn)
    dcg = _relaxed_dcg(lists, k, relaxation, balance, gain_fn, discount_fn)
    if balance:
        dcg = dcg - lax.stop_gradient(jnp.maximum(dcg - ideal, 0))  # rounding must not take a ratio above 1
    if through:
        dcg = _straight_through(_exact_dcg(lists, k, discount_fn), dcg)
    return _arrays.restore_axis(_ndcg(dcg, ideal, empty, lists), k, axis, keepdims)


@named_keywords
def smooth_dcg_at_k(
    scores: ArrayLike,
    labels: ArrayLike,
    k: Cutoffs = None,
    *,
    where: ArrayLike = None,
    temperature: ArrayLike = 1.0,
    relaxation: Checked = neural_sort,
    balance: Checked = 0,
    straight_through: bool = False,
    gain_fn: GainFn = exponential_gain,
    discount_fn: DiscountFn = log2_discount,
    axis: int = -1,
    keepdims: bool = False,
) -> Float[Array, "..."]:
    """DCG@k of a relaxed order: differentiable by the scores, and `dcg_at_k` as the temperature falls to 0.

    `DCG@k = sum_{i=1..k} r_i discount(i)` with `r = P gains`, P the first k rows of a relaxed permutation matrix.

    Args:
      scores: `[..., n]`, floating point, as in `smooth_ndcg_at_k`.
      labels: `[..., n]`, relevance grades.
      k: cutoff, an int; None for the whole list; or a tuple of ints.
      where: `[..., n]`, true for real items, false for padding.
      temperature: positive; a scalar, or one for each list, `[...]`.
      relaxation: `neural_sort`, `soft_sort`, or any function of the same signature.
      balance: sweeps that cap the relaxed order's column sums at 1.
      straight_through: give the exact value, with the gradient of the smooth one.
      gain_fn: label -> gain.
      discount_fn: 1-based rank -> discount.
      axis: the list axis.
      keepdims: keep the list axis, with length 1.

    Returns:
      One value a list, as `dcg_at_k`.

    Raises:
      ValueError, TypeError: as `smooth_ndcg_at_k`.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxrank
      >>> jaxrank.smooth_dcg_at_k(jnp.array([3.0, 1.0, 2.0]), jnp.array([1, 1, 2]), 2, temperature=0.01)
      Array(2.892..., dtype=float32)

    References:
      As `smooth_ndcg_at_k`.
    """
    return _smooth_dcg(
        *check_inputs(scores, labels, where, temperature, gain_fn, discount_fn),
        _arrays.check_cutoffs(k),
        *_check_relaxation(relaxation, balance, straight_through),
        gain_fn,
        discount_fn,
        axis,
        keepdims,
    )


@partial(jax.jit, static_argnums=range(4, 12), inline=True)
@split_by_list
def _smooth_dcg(
    scores, labels, where, temperature, k, relaxation, balance, through, gain_fn, discount_fn, axis, keepdims
):
    lists = judged_lists(scores, labels, where, temperature, gain_fn, axis)
    dcg = _relaxed_dcg(lists, k, relaxation, balance, gain_fn, discount_fn)
    if through:
        dcg = _straight_through(_exact_dcg(lists, k, discount_fn), dcg)
    return _arrays.restore_axis(poison(metrics.unscaled(dcg, lists.weigh), lists), k, axis, keepdims)


@named_keywords
def approx_ndcg_at_k(
    scores: ArrayLike,
    labels: ArrayLike,
    k: Cutoffs = None,
    *,
    where: ArrayLike = None,
    temperature: ArrayLike = 1.0,
    cutoff_temperature: ArrayLike = None,
    kernel: Checked = "logistic",
    straight_through: bool = False,
    gain_fn: GainFn = exponential_gain,
    discount_fn: DiscountFn = log2_discount,
    empty: ArrayLike = 0.0,
    axis: int = -1,
    keepdims: bool = False,
) -> Float[Array, "..."]:
    """ApproxNDCG: NDCG@k with soft ranks inside the discount.

    `NDCG@k = sum_j gain_j discount(rank_j) sigmoid((k + 1/2 - rank_j) / cutoff_temperature) / ideal DCG@k`, with the
    ranks of `soft_ranks`. Without a cutoff the sigmoid is 1. Tied items share their mean rank.

    Args:
      scores: `[..., n]`, floating point, as in `smooth_ndcg_at_k`.
      labels: `[..., n]`, relevance grades.
      k: cutoff, an int; None for the whole list; or a tuple of ints, which costs one set of soft ranks.
      where: `[..., n]`, true for real items, false for padding.
      temperature: positive; a scalar, or one for each list, `[...]`. At 1 a perfect order of 20 normal scores is
        worth 0.83 only, at 0.1 0.99998.
      cutoff_temperature: softness of the cutoff, in ranks; None: the number `temperature` is.
      kernel: "logistic" compares all pairs, in blocks; "laplace" needs O(n log n) time and O(n) memory.
      straight_through: give the exact value, with the gradient of the smooth one.
      gain_fn: label -> gain.
      discount_fn: 1-based rank -> discount; it sees ranks that are not whole.
      empty: the value of a list without a relevant item, which has gradient 0.
      axis: the list axis.
      keepdims: keep the list axis, with length 1.

    Returns:
      One value a list, as `ndcg_at_k`.

    Raises:
      ValueError, TypeError: as `smooth_ndcg_at_k`, and if the kernel is unknown.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxrank
      >>> scores, labels = jnp.array([0.3, -0.1, 0.7, 0.2]), jnp.array([1, 0, 2, 3])
      >>> jaxrank.approx_ndcg_at_k(scores, labels, 3, temperature=0.01, kernel="laplace")
      Array(0.759..., dtype=float32)

    References:
      Qin et al. (2010), A general approximation framework for direct optimization of information retrieval measures;
      Bruch et al. (2019), Revisiting approximate metric optimization in the age of deep neural networks; Struski et
      al. (2025), LapSum.
    """
    _arrays.check_option("kernel", kernel, relaxations.KERNELS)
    softness = temperature if cutoff_temperature is None else cutoff_temperature
    return _approx_ndcg(
        *check_inputs(scores, labels, where, temperature, gain_fn, discount_fn),
        relaxations.check_temperature(softness),
        _arrays.check_number("empty", empty),
        _arrays.check_cutoffs(k),
        kernel,
        bool(straight_through),
        gain_fn,
        discount_fn,
        axis,
        keepdims,
    )


@partial(jax.jit, static_argnums=range(6, 13), inline=True)
@split_by_list
def _approx_ndcg(
    scores, labels, where, temperature, softness, empty, k, kernel, through, gain_fn, discount_fn, axis, keepdims
):
    lists = judged_lists(scores, labels, where, temperature, gain_fn, axis)
    softness = relaxations.list_temperature(softness, lists.ranked.keys)
    dcg = _soft_rank_dcg(lists, k, kernel, softness, discount_fn)
    if through:
        dcg = _straight_through(_exact_dcg(lists, k, discount_fn), dcg)
    values = _ndcg(dcg, ideal_dcg(lists, k, discount_fn), empty, lists)
    return _arrays.restore_axis(values, k, axis, keepdims)


# -------------------------------------------------------------------------------------------------------- the border


def check_inputs(
    scores: ArrayLike,
    labels: ArrayLike,
    where: ArrayLike,
    temperature: ArrayLike,
    gain_fn: GainFn,
    discount_fn: DiscountFn,
) -> tuple:
    metrics.check_functions(gain_fn, discount_fn)
    arrays = _arrays.as_array("scores", scores), _arrays.as_array("labels", labels), _arrays.as_mask(where)
    return *arrays, relaxations.check_temperature(temperature)


def _check_relaxation(relaxation: Checked, balance: Checked, straight_through: bool) -> tuple:
    _arrays.check_function("relaxation", relaxation)
    return relaxation, check_balance(balance), bool(straight_through)


def check_balance(balance: Checked) -> int:
    if isinstance(balance, bool) or not isinstance(balance, int) or balance < 0:
        raise ValueError(f"balance is a number of sweeps, 0 or more; got {balance!r}.")
    return balance


# ------------------------------------------------------------------------------------------------------- DCG, thrice


class SmoothLists(NamedTuple):
    ranked: relaxations.JudgedLists
    weigh: metrics.ScaledGain


def judged_lists(scores, labels, where, temperature, gain_fn, axis) -> SmoothLists:
    scores, labels, where = _arrays.as_lists(scores, labels, where, axis)
    weigh = metrics.scaled_gain(gain_fn, labels, where)
    ranked = relaxations.ranked_lists(scores.astype(labels.dtype), where, temperature)
    return SmoothLists(relaxations.JudgedLists(*ranked, labels, weigh.shift), weigh)


def ideal_dcg(lists: SmoothLists, k: Cutoffs, discount_fn: DiscountFn) -> Values:
    return metrics.discounted(metrics.ideal_gains(lists.weigh, lists.ranked.labels, k), discount_fn, k)


def _exact_dcg(lists: SmoothLists, k: Cutoffs, discount_fn: DiscountFn) -> Values:
    keys, labels = lists.ranked.keys, lists.ranked.labels
    gains = ordering.ranked_gains(keys, labels, lists.weigh.gain, _arrays.depth(k, keys.shape[-1]), "average")
    return metrics.discounted(gains, discount_fn, k)


def _relaxed_dcg(lists: SmoothLists, k: Cutoffs, relaxation: Relaxation, balance: int, gain_fn, discount_fn) -> Values:
    depth = _arrays.depth(k, lists.ranked.keys.shape[-1])
    how = relaxations.Relaxed(relaxation, balance, depth, gain_fn)
    return metrics.discounted(relaxations.ranked_gains(lists.ranked, how), discount_fn, k)


def _soft_rank_dcg(lists: SmoothLists, k: Cutoffs, kernel: str, softness: Array, discount_fn: DiscountFn) -> Values:
    scores, keys, temperature, labels, _ = lists.ranked
    live = keys > -jnp.inf
    gains = ordering.valid_gains(labels, live, lists.weigh.gain)
    ranks = jnp.where(live, relaxations.kernel_ranks(scores, keys, temperature, kernel), 1)
    terms = gains * discount_fn(ranks)
    if k is None:
        return terms.sum(axis=-1, keepdims=True)
    cutoffs: tuple = k if isinstance(k, tuple) else (k,)
    inside = (jax.nn.sigmoid((cutoff + 0.5 - ranks) / softness) for cutoff in cutoffs)
    return jnp.stack([(terms * share).sum(axis=-1) for share in inside], axis=-1)


@jax.custom_jvp
def _straight_through(exact: Values, smooth: Values) -> Values:
    return exact


@_straight_through.defjvp
def _straight_through_jvp(primals, tangents):
    return primals[0], tangents[1]


def _ndcg(dcg: Values, ideal: Values, empty: Array, lists: SmoothLists) -> Values:
    return poison(_arrays.safe_divide(dcg, ideal, jnp.asarray(empty)), lists)


def poison(values: Values, lists: SmoothLists) -> Values:
    return metrics.poison(values, relaxations.without_value(lists.ranked.keys, lists.ranked.temperature))
