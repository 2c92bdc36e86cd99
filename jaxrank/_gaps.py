"""A list in descending order of its scores, as the gaps between neighbours: what both relaxations are computed from.

Only differences of scores matter to a relaxation, so a gap form keeps its digits whatever is added to the scores, and
with gaps that are never negative every exponent is at most 0: nothing overflows.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from jaxrank import ordering
from jaxrank._typing import Indices, Lists, Mask, Ranked

KEPT = "jaxrank_kept"  # name of what is worth keeping for the way back, where the rest is computed anew


class Gaps(NamedTuple):
    """The first w items of each list, best score first."""

    gap: Float[Array, "*batch w"]  # (score[d - 1] - score[d]) / temperature; 0 at d = 0 and past the last live item
    live: Bool[Array, "*batch w"]  # has a rank: neither masked nor -inf
    indices: Int[Array, "*batch w"]  # where the item stands in the list


def ranked_gaps(scores: Lists, keys: Lists, temperature: Float[Array, "*#batch 1"], width: int) -> Gaps:
    """The gaps of the `width` best items. `keys` are the scores with -inf where an item has no rank."""
    values, indices = _best(keys, width)
    live, indices = checkpoint_name(values > -jnp.inf, KEPT), checkpoint_name(indices, KEPT)
    # The gather, not the values of the selection, carries the gradient.
    ranked = ordering.take(scores, indices)
    previous = jnp.concatenate([ranked[..., :1], ranked[..., :-1]], axis=-1)
    return Gaps(scaled(jnp.where(live, previous - ranked, 0), temperature), live, indices)


def _best(keys: Lists, k: int) -> tuple[Ranked, Indices]:
    """`ordering.top_k` with ties in any order."""
    n = keys.shape[-1]
    if keys.dtype != jnp.float32 or not isinstance(n, int) or not 12 * k <= n <= 64 * k:
        return ordering.top_k(keys, k)
    return lax.platform_dependent(keys, cpu=partial(_best_above, k=k), default=partial(ordering.top_k, k=k))


def _best_above(keys: Lists, k: int) -> tuple[Ranked, Indices]:
    """XLA on CPU selects by a heap, whose work is to let in keys that will not stay: so drop those below a bound first.

    At least k keys are as large as a bound which the maxima of k groups reach; a few halvings find a good one.
    Measured, ms: 64 x 2048, k = 76, 1.05 against 1.57; 1024 x 1000, k = 65, 9.4 against 14.7.
    """
    groups = keys.shape[-1] // 4
    maxima = keys[..., : 4 * groups].reshape(*keys.shape[:-1], 4, groups).max(axis=-2)
    bound, above = maxima.min(axis=-1, keepdims=True), maxima.max(axis=-1, keepdims=True)
    for _ in range(4):
        middle = bound / 2 + above / 2
        enough = (maxima >= middle).astype(keys.dtype).sum(axis=-1, keepdims=True) >= k  # faster than of integers
        bound, above = jnp.where(enough, middle, bound), jnp.where(enough, above, middle)
    return ordering.top_k(jnp.where(keys >= bound, keys, -jnp.inf), k)


def scaled(distance: Float[Array, "*batch w"], temperature: Float[Array, "*#batch 1"]) -> Float[Array, "*batch w"]:
    """`distance / temperature`, but no farther than where a weight is exactly 0.

    What is summed up over such distances then stays small, so that scores of any size leave the digits of the items
    beyond them alone.
    """
    temperature = positive(temperature)
    cap = -1.2 * np.log(np.finfo(distance.dtype).tiny).astype(distance.dtype)
    far = distance >= cap * temperature
    return jnp.where(far, cap, jnp.where(far, 0, distance) / temperature)


def positive(temperature: Float[Array, "*#batch 1"]) -> Float[Array, "*#batch 1"]:
    """NaN unless positive; the least temperatures are raised to one whose reciprocal still is a number."""
    # By the bits, because XLA reads a subnormal number (1e-40) as 0 in a comparison.
    bits = lax.bitcast_convert_type(temperature, jnp.int64 if temperature.dtype == jnp.float64 else jnp.int32)
    least = np.sqrt(np.finfo(temperature.dtype).tiny).astype(temperature.dtype)
    return jnp.where(bits > 0, jnp.maximum(temperature, least), jnp.nan)


def tie_starts(gaps: Gaps) -> Mask:
    """True where a group of tied scores starts."""
    position = lax.broadcasted_iota(jnp.int32, gaps.gap.shape, gaps.gap.ndim - 1)
    return (gaps.gap > 0) | ~gaps.live | (position == 0)


def tied_groups(starts: Mask) -> tuple[Indices, Indices]:
    """The first and the last position of each one's tied group."""
    axis = starts.ndim - 1
    position = lax.broadcasted_iota(jnp.int32, starts.shape, axis)
    ends = jnp.concatenate([starts[..., 1:], jnp.ones_like(starts[..., :1])], axis=-1)
    first = lax.cummax(jnp.where(starts, position, 0), axis=axis)
    last = lax.cummin(jnp.where(ends, position, starts.shape[-1] - 1), axis=axis, reverse=True)
    return first, last


@jax.custom_batching.custom_vmap
def any_list(flags: Bool[Array, "*batch m"]) -> Bool[Array, " m"]:
    """Whether any list of the batch raises each of m flags.

    Also under the caller's `vmap`, so that a `lax.cond` on it stays a branch and does not become two computations.
    """
    return flags.any(axis=tuple(range(flags.ndim - 1)))


@any_list.def_vmap
def _any_list_vmap(axis_size, in_batched, flags):
    return any_list(flags), False
