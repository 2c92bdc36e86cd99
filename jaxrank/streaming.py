"""A mean over batches, devices and processes, kept as sums that can be added: never a mean of means."""

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Shaped

from jaxrank import _arrays
from jaxrank._typing import ArrayLike, Checked, Values

WEIGHT, TOTAL, SQUARE, WEIGHTS_SQUARED = range(4)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RankingMean:
    """The running mean of per-list values, with its standard error: an immutable pytree of three arrays.

    `mean = sum_i w_i v_i / sum_i w_i` over all values so far, whatever batches or devices they came in. The standard
    error is `s sqrt(sum_i w_i^2) / sum_i w_i`, with s^2 the unbiased weighted variance of the values; for equal
    weights `s / sqrt(n)`.

    It goes through `jit`, `scan`, `vmap` and `shard_map`. `merge` is associative and commutative, exactly for the
    count and to rounding for the rest; `empty` is its neutral element. Sums carry their rounding errors along, so that
    ten million updates lose nothing, and the squares are taken about the mean, so that nothing cancels. The sum
    inside one batch is XLA's.

    Attributes:
      sums: `[*shape, 4]`: of the weights, of the weighted values, of the weighted squares about their mean, of the
        squared weights.
      rest: `[*shape, 4]`, what rounding left out of `sums`.
      count: `[*shape]`, int32: how many values were counted, exact up to 2^31 - 1.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxrank
      >>> state = jaxrank.RankingMean.empty()
      >>> state = state.update(jnp.array([0.5, 1.0]))
      >>> state = state.update(jnp.array([0.0, 0.7]), where=jnp.array([True, False]))  # the last list is padding
      >>> state.mean, state.stderr, state.count
      (Array(0.5, dtype=float32), Array(0.288..., dtype=float32), Array(3, dtype=int32))

    Saved and restored as plain arrays:

        np.savez("mean.npz", **vars(state))
        state = RankingMean(**np.load("mean.npz"))

    Over devices, in `shard_map` or `vmap` with an axis name (under `jit` on sharded arrays `update` alone does it):

        state = RankingMean.empty().update(values).all_reduce("data")

    In a loop of merged batches, as with clu's metrics:

        @jax.jit
        def eval_step(params, batch):
            return RankingMean.empty().update(ndcg(params, batch), where=batch["real"])

        state = functools.reduce(RankingMean.merge, (eval_step(params, batch) for batch in batches))

    With flax nnx, beside the model:

        @nnx.jit
        def eval_step(model, state, batch):
            return state.update(ndcg(model, batch), where=batch["real"])

    References:
      Chan, Golub and LeVeque (1983), Algorithms for computing the sample variance (merging); Knuth (1997), The art of
      computer programming 2, section 4.2.2 (the error of a sum).
    """

    # Any: transformations put other things than arrays into a pytree.
    sums: Any
    rest: Any
    count: Any

    @classmethod
    def empty(cls, shape: Checked = ()) -> "RankingMean":
        """Of no values yet. With a `shape`, one mean for each entry: `(2,)` for two cutoffs."""
        return cls(jnp.zeros((*shape, 4), float), jnp.zeros((*shape, 4), float), jnp.zeros(shape, jnp.int32))

    def update(self, values: ArrayLike, where: ArrayLike = None, weights: ArrayLike = None) -> "RankingMean":
        """With more values.

        Args:
          values: `[..., *shape]`; one that is counted and NaN or infinite makes the mean NaN for good, to be seen.
          where: true for values that count; of the shape of `values`, or `[...]`, one a list. Another is never looked
            at, NaN or not.
          weights: of either shape, not negative; a weight of 0 does not count, as `where`.

        Returns:
          The new state.

        Raises:
          ValueError: if the shapes do not fit, or a weight is negative (on a device the mean is NaN instead).
          TypeError: if an input does not hold real numbers.
        """
        return _update(self, _arrays.as_array("values", values), _arrays.as_mask(where), _check_weights(weights))

    def merge(self, other: "RankingMean") -> "RankingMean":
        """Of the values of both."""
        return _merge(self, other)

    def all_reduce(self, axis_name: Checked) -> "RankingMean":
        """Of the values of all devices along a mesh axis, or all entries along a `vmap` axis; `merge` of them all."""
        index = lax.axis_index(axis_name)

        def gather(array: Array) -> Array:
            # By a sum of disjoint slots, since what `all_gather` returns does not count as equal on all devices.
            slot = lax.broadcasted_iota(jnp.int32, (lax.axis_size(axis_name), *array.shape), 0) == index
            return lax.psum(jnp.where(slot, array[None], jnp.zeros_like(array)[None]), axis_name)

        states = jax.tree.map(gather, self)
        return lax.scan(lambda state, other: (state.merge(other), None), RankingMean.empty(self.count.shape), states)[0]

    @property
    def mean(self) -> Float[Array, "..."]:
        """`[*shape]`; NaN of no values."""
        return _mean(self)

    @property
    def stderr(self) -> Float[Array, "..."]:
        """`[*shape]`, the standard error of the mean, for values that are independent; NaN of fewer than two."""
        return _stderr(self)


@partial(jax.jit, inline=True)
def _merge(state: RankingMean, other: RankingMean) -> RankingMean:
    weight, others = _value(state, WEIGHT), _value(other, WEIGHT)
    apart = _ratio(_value(state, TOTAL), weight, 0.0) - _ratio(_value(other, TOTAL), others, 0.0)
    between = apart * apart * _ratio(weight * others, weight + others, 0.0)
    sums, error = _two_sum(state.sums, other.sums)
    sums, rest = _two_sum(sums, (error + (state.rest + other.rest)).at[..., SQUARE].add(between))
    return RankingMean(sums, rest, state.count + other.count)


@partial(jax.jit, inline=True)
def _mean(state: RankingMean) -> Float[Array, "..."]:
    return _ratio(_value(state, TOTAL), _value(state, WEIGHT), math.nan)


@partial(jax.jit, inline=True)
def _stderr(state: RankingMean) -> Float[Array, "..."]:
    weight = _value(state, WEIGHT)
    share = _ratio(_ratio(_value(state, WEIGHTS_SQUARED), weight, 1.0), weight, 1.0)  # 1 / n for equal weights
    variance = _ratio(_value(state, SQUARE), weight, math.nan) * _ratio(share, 1 - share, math.nan)
    return jnp.where(state.count > 1, jnp.sqrt(variance), jnp.nan)


def _value(state: RankingMean, which: int) -> Float[Array, "..."]:
    return state.sums[..., which] + state.rest[..., which]


def _ratio(numerator: Values, denominator: Values, empty: float) -> Values:
    return _arrays.safe_divide(numerator, denominator, jnp.asarray(empty))


def _two_sum(a: Values, b: Values) -> tuple[Values, Values]:
    """The rounded sum, and exactly what rounding left out of it."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _check_weights(weights: ArrayLike) -> jax.Array | np.ndarray | None:
    array = _arrays.as_optional("weights", weights)
    if isinstance(array, np.ndarray) and (array < 0).any():  # one on a device is not waited for
        raise ValueError(f"weights must not be negative; got {array.min()}.")
    return array


@partial(jax.jit, inline=True)
def _update(state, values, where, weights):
    shape, dtype = state.count.shape, state.sums.dtype
    lists = values.ndim - len(shape)
    if lists < 0 or values.shape[lists:] != shape:
        raise ValueError(f"values must have the shape [..., *{shape}] of this mean; got {values.shape}.")
    for name, array in {"values": values, "where": where, "weights": weights}.items():
        if array is not None:
            _arrays.check_real(name, array)
    weigh = jnp.ones(values.shape, dtype) if weights is None else _fit("weights", weights, values, lists).astype(dtype)
    counts = weigh != 0
    if where is not None:
        counts = counts & _fit("where", where, values, lists).astype(bool)
    values, weigh = jnp.where(counts, values.astype(dtype), 0), jnp.where(counts, weigh, 0)
    return state.merge(_of_batch(values, jnp.where(weigh < 0, jnp.nan, weigh), counts, tuple(range(lists))))


def _of_batch(
    values: Float[Array, "*batch"], weights: Float[Array, "*batch"], counts: Bool[Array, "*batch"], axes: tuple
) -> RankingMean:
    total = partial(jnp.sum, axis=axes)
    weight, weighted = total(weights), total(weights * values)
    distance = values - jnp.expand_dims(_ratio(weighted, weight, 0.0), axes)
    sums = jnp.stack([weight, weighted, total(weights * distance * distance), total(weights * weights)], axis=-1)
    return RankingMean(sums, jnp.zeros_like(sums), counts.sum(axis=axes, dtype=jnp.int32))


def _fit(name: str, array: Shaped[Array, "..."], values: Values, lists: int) -> Shaped[Array, "..."]:
    """One number a value, from one for each or one a list."""
    if array.shape == values.shape[:lists]:
        array = jnp.expand_dims(array, tuple(range(lists, values.ndim)))
    elif array.shape != values.shape:
        raise ValueError(
            f"{name} must have the shape of the values, {values.shape}, or one entry a list, {values.shape[:lists]}; "
            f"got {array.shape}."
        )
    return jnp.broadcast_to(array, values.shape)
