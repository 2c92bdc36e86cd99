"""Training losses on the surrogates, in optax's manner: `(scores, labels, *, where, weights, reduce_fn, ...)`.

A list that is wholly masked, or that holds nothing relevant, has loss 0 and gradient 0. The first kind is left out of
the mean; the second counts in it, so mask such lists to leave them out too.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped

from jaxrank import _arrays, ordering, surrogates
from jaxrank._devices import split_by_list
from jaxrank._gaps import positive
from jaxrank._keywords import named_keywords
from jaxrank._typing import ArrayLike, Checked, DiscountFn, GainFn, Mask, ReduceFn
from jaxrank.discounts import log2_discount
from jaxrank.gains import exponential_gain
from jaxrank.relaxations import neural_sort

_ROWS = 8  # ranks whose pairs with all items are computed at once


@named_keywords
def smooth_ndcg_loss(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    k: int | None = None,
    where: ArrayLike = None,
    weights: ArrayLike = None,
    reduce_fn: ReduceFn | None = jnp.mean,
    temperature: ArrayLike = 1.0,
    relaxation: Checked = neural_sort,
    balance: Checked = 0,
    straight_through: bool = False,
    gain_fn: GainFn = exponential_gain,
    discount_fn: DiscountFn = log2_discount,
    axis: int = -1,
) -> Float[Array, "..."]:
    """`1 - smooth_ndcg_at_k(scores, labels, k)`: NeuralSort or SoftSort inside NDCG.

    A list without a relevant item, or without an item, has loss 0 and gradient 0. The mean counts every list that has
    an item: a wholly masked list is left out of it.

    Args:
      scores: `[..., n]`, floating point; the highest ranks first.
      labels: `[..., n]`, relevance grades.
      k: cutoff, an int; None for the whole list.
      where: `[..., n]`, true for real items, false for padding.
      weights: `[...]`, one for each list, that its loss is multiplied by.
      reduce_fn: called as `reduce_fn(losses, where=lists_that_have_an_item)`, as `jnp.mean` or `jnp.sum` can be;
        None: one loss a list.
      temperature: positive; a scalar, or one for each list. Between 0.1 and 1 works well, or 0.03 to 0.1 times n.
      relaxation: `neural_sort`, `soft_sort`, or any function of the same signature.
      balance: sweeps that cap the relaxed order's column sums at 1; 5 trains better than 0.
      straight_through: give the exact value, with the gradient of the smooth one.
      gain_fn: label -> gain.
      discount_fn: 1-based rank -> discount.
      axis: the list axis.

    Returns:
      A scalar, or `[...]` without a `reduce_fn`.

    Raises:
      ValueError, TypeError: as `smooth_ndcg_at_k`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import jaxrank
      >>> scores, labels = jnp.zeros((1, 4)), jnp.array([[0, 1, 3, 0]])
      >>> jax.grad(jaxrank.smooth_ndcg_loss)(scores, labels, k=2)
      Array([[ 0.237...,  0.118..., -0.594...,  0.237...]], dtype=float32)

    References:
      As `smooth_ndcg_at_k`.
    """
    _check_cutoff(k)
    values = surrogates.smooth_ndcg_at_k(
        scores,
        labels,
        k,
        where=where,
        temperature=temperature,
        relaxation=relaxation,
        balance=balance,
        straight_through=straight_through,
        gain_fn=gain_fn,
        discount_fn=discount_fn,
        empty=1.0,
        axis=axis,
    )
    return _reduced(1 - values, where, weights, reduce_fn, axis)


@named_keywords
def approx_ndcg_loss(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    k: int | None = None,
    where: ArrayLike = None,
    weights: ArrayLike = None,
    reduce_fn: ReduceFn | None = jnp.mean,
    temperature: ArrayLike = 1.0,
    cutoff_temperature: ArrayLike = None,
    kernel: Checked = "logistic",
    straight_through: bool = False,
    gain_fn: GainFn = exponential_gain,
    discount_fn: DiscountFn = log2_discount,
    axis: int = -1,
) -> Float[Array, "..."]:
    """`1 - approx_ndcg_at_k(scores, labels, k)`: soft ranks inside the discount of NDCG.

    A list without a relevant item, or without an item, has loss 0 and gradient 0. The mean counts every list that has
    an item: a wholly masked list is left out of it.

    Args:
      scores: `[..., n]`, floating point; the highest ranks first.
      labels: `[..., n]`, relevance grades.
      k: cutoff, an int; None for the whole list.
      where: `[..., n]`, true for real items, false for padding.
      weights: `[...]`, one for each list, that its loss is multiplied by.
      reduce_fn: called as `reduce_fn(losses, where=lists_that_have_an_item)`; None: one loss a list.
      temperature: positive; a scalar, or one for each list. Between 0.1 and 0.3 works well.
      cutoff_temperature: softness of the cutoff, in ranks; None: the number `temperature` is.
      kernel: "logistic" or "laplace", as in `soft_ranks`.
      straight_through: give the exact value, with the gradient of the smooth one.
      gain_fn: label -> gain.
      discount_fn: 1-based rank -> discount.
      axis: the list axis.

    Returns:
      A scalar, or `[...]` without a `reduce_fn`.

    Raises:
      ValueError, TypeError: as `approx_ndcg_at_k`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import jaxrank
      >>> scores, labels = jnp.zeros((1, 3)), jnp.array([[0, 1, 3]])
      >>> jax.grad(jaxrank.approx_ndcg_loss)(scores, labels, kernel="laplace").argmin()
      Array(2, dtype=int32)

    References:
      As `approx_ndcg_at_k`.
    """
    _check_cutoff(k)
    values = surrogates.approx_ndcg_at_k(
        scores,
        labels,
        k,
        where=where,
        temperature=temperature,
        cutoff_temperature=cutoff_temperature,
        kernel=kernel,
        straight_through=straight_through,
        gain_fn=gain_fn,
        discount_fn=discount_fn,
        empty=1.0,
        axis=axis,
    )
    return _reduced(1 - values, where, weights, reduce_fn, axis)


@named_keywords
def lambda_ndcg_loss(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    k: int | None = None,
    where: ArrayLike = None,
    weights: ArrayLike = None,
    reduce_fn: ReduceFn | None = jnp.mean,
    temperature: ArrayLike = 1.0,
    mu: ArrayLike = 10.0,
    gain_fn: GainFn = exponential_gain,
    discount_fn: DiscountFn = log2_discount,
    axis: int = -1,
) -> Float[Array, "..."]:
    """LambdaLoss with the weights of NDCG-Loss2++: a pairwise bound on what NDCG@k misses.

    `sum over pairs w log2(1 + exp(-(s_i - s_j) / temperature))`, i the more relevant item, with
    `w = (|d_i - d_j| + mu |discount(|i - j|) - discount(|i - j| + 1)|) |gain_i - gain_j| / ideal DCG@k`, where i and j
    are ranks by the present scores, d the discount, and d = 0 beyond rank k. A pair counts if one of its items is in
    the first k ranks. The weights have no gradient. Pairs are computed in blocks: O(k n) time and O(n) memory.

    A list without a relevant item, or without an item, has loss 0 and gradient 0. The mean counts every list that has
    an item: a wholly masked list is left out of it.

    Args:
      scores: `[..., n]`, floating point; the highest ranks first. -inf: not retrieved, in no pair.
      labels: `[..., n]`, relevance grades.
      k: cutoff, an int; None for the whole list.
      where: `[..., n]`, true for real items, false for padding.
      weights: `[...]`, one for each list, that its loss is multiplied by.
      reduce_fn: called as `reduce_fn(losses, where=lists_that_have_an_item)`; None: one loss a list.
      temperature: positive; a scalar, or one for each list.
      mu: the share of the second term; 0 is LambdaRank.
      gain_fn: label -> gain.
      discount_fn: 1-based rank -> discount.
      axis: the list axis.

    Returns:
      A scalar, or `[...]` without a `reduce_fn`.

    Raises:
      ValueError, TypeError: as `smooth_ndcg_at_k`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import jaxrank
      >>> scores, labels = jnp.array([[0.5, 0.0]]), jnp.array([[0, 1]])
      >>> jaxrank.lambda_ndcg_loss(scores, labels, mu=0.0)
      Array(0.5186..., dtype=float32)

    References:
      Wang et al. (2018), The LambdaLoss framework for ranking metric optimization; Burges (2010), From RankNet to
      LambdaRank to LambdaMART.
    """
    _check_cutoff(k)
    losses = _lambda_ndcg(
        *surrogates.check_inputs(scores, labels, where, temperature, gain_fn, discount_fn),
        _arrays.check_number("mu", mu),
        k,
        gain_fn,
        discount_fn,
        axis,
    )
    return _reduced(losses, where, weights, reduce_fn, axis)


@named_keywords
def gumbel_perturb(
    key: Array, scores: ArrayLike, *, num_samples: int, scale: ArrayLike = 1.0, where: ArrayLike = None
) -> Float[Array, "samples *batch n"]:
    """Scores with Gumbel noise, for stochastic training: `scores + scale * noise`.

    The order of scores perturbed at scale 1 is a sample of the Plackett-Luce model whose log-weights they are. The
    average of a surrogate over samples is smooth also where it is flat without noise, as SoftSort is at tied scores.

    Args:
      key: a key from `jax.random.key`.
      scores: `[..., n]`, floating point.
      num_samples: how many samples.
      scale: size of the noise.
      where: `[..., n]`, true for real items; the others are left as they are.

    Returns:
      `[num_samples, ..., n]`, in the dtype of the scores.

    Raises:
      ValueError: if `num_samples` is below 1.
      TypeError: if the scores are not floating point.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import jaxrank
      >>> jaxrank.gumbel_perturb(jax.random.key(0), jnp.zeros((2, 5)), num_samples=8).shape
      (8, 2, 5)

    References:
      Bruch et al. (2020), A stochastic treatment of learning to rank scoring functions.
    """
    if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 1:
        raise ValueError(f"num_samples must be an int, at least 1; got {num_samples!r}.")
    scores = jnp.asarray(_arrays.as_array("scores", scores))
    if not jnp.issubdtype(scores.dtype, jnp.floating):
        raise TypeError(f"scores must be floating point, since noise is added to them; got {scores.dtype}.")
    dtype = _arrays.result_dtype(scores)
    noise = jnp.asarray(scale, dtype) * jax.random.gumbel(key, (num_samples, *scores.shape), dtype)
    perturbed = (scores[None].astype(dtype) + noise).astype(scores.dtype)
    return perturbed if where is None else jnp.where(_mask(where)[None], perturbed, scores[None])


# ------------------------------------------------------------------------------------------------------------- parts


def _check_cutoff(k: int | None) -> None:
    if isinstance(k, tuple):
        raise TypeError(f"a loss has one cutoff: k must be None or an int; got {k}.")
    _arrays.check_cutoffs(k)


def _reduced(
    losses: Float[Array, "*batch"], where: ArrayLike, weights: ArrayLike, reduce_fn: ReduceFn | None, axis: int
) -> Float[Array, "..."]:
    if weights is not None:
        losses = losses * _list_weights(weights, losses)
    if reduce_fn is None:
        return losses
    _arrays.check_function("reduce_fn", reduce_fn)
    if where is None:
        return reduce_fn(losses)
    counted = jnp.broadcast_to(_mask(where).any(axis=axis), losses.shape)
    # Where no list counts all do: all their losses are 0, and so is the mean.
    return reduce_fn(losses, where=counted | ~counted.any())


def _mask(where: ArrayLike) -> Array:
    return jnp.asarray(_arrays.as_mask(where)).astype(bool)


def _list_weights(weights: ArrayLike, losses: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    weights = jnp.asarray(_arrays.as_array("weights", weights))
    try:
        return jnp.broadcast_to(weights, losses.shape).astype(losses.dtype)
    except ValueError as error:
        raise ValueError(f"weights must be one for each list, {losses.shape}; got {weights.shape}.") from error


@partial(jax.jit, static_argnums=range(5, 9), inline=True)
@split_by_list
def _lambda_ndcg(scores, labels, where, temperature, mu, k, gain_fn, discount_fn, axis):
    lists = surrogates.judged_lists(scores, labels, where, temperature, gain_fn, axis)
    ideal = surrogates.ideal_dcg(lists, k, discount_fn)
    scores, keys, temperature, labels, _ = lists.ranked
    n = keys.shape[-1]
    values, indices = ordering.top_k(keys, n)
    live = values > -jnp.inf
    gains = ordering.gains_at(labels, indices, live, lists.weigh.gain)
    gains = lax.stop_gradient(_arrays.safe_divide(gains, ideal, jnp.zeros((), gains.dtype)))
    ranked = jnp.where(live, ordering.take(scores, indices), 0) / positive(temperature)
    losses = _pair_losses(ranked, gains, live, _arrays.depth(k, n), jnp.asarray(mu, gains.dtype), discount_fn)
    return surrogates.poison(losses[..., None], lists).squeeze(-1)


def _pair_losses(
    scores: Shaped[Array, "*batch n"], gains: Shaped[Array, "*batch n"], live: Mask, k: int, mu: Array, discount_fn
) -> Float[Array, "*batch"]:
    """The sum over pairs of a rank below k with every later rank."""
    n = scores.shape[-1]
    rank = jnp.arange(n, dtype=jnp.int32)
    discount = discount_fn((rank + 1).astype(gains.dtype))
    discount = jnp.where(rank < k, discount, 0)

    def rows(first: Array) -> Float[Array, "*batch"]:
        row = first + jnp.arange(_ROWS, dtype=jnp.int32)
        at = partial(jnp.take, indices=row, axis=-1, mode="clip")
        distance = rank[None, :] - row[:, None]
        apart = jnp.maximum(distance, 1).astype(gains.dtype)
        second = jnp.abs(discount_fn(apart) - discount_fn(apart + 1))
        weight = jnp.abs(at(discount)[:, None] - discount[None, :]) + mu * second
        pairs = (distance > 0) & (row < k)[:, None]
        gain = at(gains)[..., :, None] - gains[..., None, :]
        margin = jnp.sign(gain) * (at(scores)[..., :, None] - scores[..., None, :])
        counted = _arrays.expand(pairs, gain.ndim) & at(live)[..., :, None] & live[..., None, :] & (gain != 0)
        terms = _arrays.expand(weight, gain.ndim) * jnp.abs(gain) * jax.nn.softplus(-margin) / jnp.log(2)
        return jnp.where(counted, terms, 0).sum(axis=(-2, -1))

    firsts = jnp.arange(0, k, _ROWS, dtype=jnp.int32)
    return lax.map(jax.checkpoint(rows, prevent_cse=False), firsts).sum(axis=0)
