"""The first k of many lists at once, for CPU: each step takes the next key of every list.

XLA's own selection there takes one list after the other, on one thread, whereas its reductions of floats fill vector
units and threads. So that a step is one such reduction, a key and its position are packed into one float32: the leading
bits of the key, then the position. No two are equal; they are in the order of the leading bits, then of the position. A
few more than k are selected, by which it shows whether a key left out may be among the first k; those selected are then
put in the order of all their bits.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrank._arrays import wide
from jaxrank._typing import Size

_MORE = 3  # selected at least, than are certain to be the largest
_WIDTH = 8  # of a group: of long lists only the groups of the largest keys are looked into
_SMALLEST = 2**23  # the bits of the smallest normal float32; on CPU what is below counts as 0


def pays(keys: Float[Array, "*batch n"], count: Size, k: Size) -> bool:
    """Whether this way is the faster one, as measured on two threads; before jax 0.10 XLA's reductions were not fast.

    Ms, K=11, against XLA's selection: 1024 x 128 0.7 against 1.3, 1024 x 1000 1.6 against 3.4, 4096 x 100 1.9 against
    4.7. Where the order is unsure (equal keys of full precision at the cutoff) this is lost, and XLA's comes after it.
    """
    known = all(isinstance(size, int) for size in (*keys.shape, count, k))
    if not known or keys.dtype.itemsize > 4 or jax.__version_info__ < (0, 10):
        return False
    *batch, n = keys.shape
    few = max(count, k + _MORE) <= 27
    return few and 16 <= n <= 4096 and math.prod(batch) >= 256 and math.prod(keys.shape) <= 2**22


def packed_top_k(keys: Float[Array, "*batch n"], count: int, k: int, otherwise: Callable[[], Sequence]) -> Sequence:
    """What `select` gives; `otherwise()` if it is unsure which the k largest are."""
    n = keys.shape[-1]
    digits, more = (n - 1).bit_length(), min(max(count, k + _MORE), n)
    places = lax.broadcasted_iota(jnp.int32, keys.shape, keys.ndim - 1)
    if n > 32 * _WIDTH:
        places = _members(_group_maxima(keys, digits), more, digits, n)
    best = _descending(_pack(_take(keys, places) if n > 32 * _WIDTH else keys, places, digits), more)
    sure = (_leading(best[..., k - 1], digits) > _leading(best[..., -1], digits)).all() | (more == n)
    sure = lax.cond(sure, lambda: sure, lambda: _nothing_cut(keys, digits))
    return lax.cond(sure, lambda: _in_order(keys, _positions(best, digits), count), otherwise)


def _spare(digits: int) -> int:
    """How many bits of a key are left out: a packed number has 30 bits beside those of the smallest."""
    return digits + 2


def _bits(keys: Float[Array, "*n"]) -> Int[Array, "*n"]:
    keys = wide(keys)
    return lax.bitcast_convert_type(jnp.where(keys == 0, jnp.zeros_like(keys), keys), jnp.int32)


def _pack(keys: Float[Array, "*n"], places: Int[Array, "*n"], digits: int) -> Float[Array, "*n"]:
    spare, bits = _spare(digits), _bits(keys)
    ascending = (bits ^ ((bits >> 31) & jnp.int32(2**31 - 1))) >> spare
    last = 2**digits - 1
    packed = ((ascending + jnp.int32(2 ** (31 - spare))) << digits) + (jnp.int32(last + _SMALLEST) - places)
    return lax.bitcast_convert_type(packed, jnp.float32)


def _leading(packed: Float[Array, "*n"], digits: int) -> Int[Array, "*n"]:
    return (lax.bitcast_convert_type(packed, jnp.int32) - _SMALLEST) >> digits


def _positions(packed: Float[Array, "*n"], digits: int) -> Int[Array, "*n"]:
    last = 2**digits - 1
    return last - ((lax.bitcast_convert_type(packed, jnp.int32) - _SMALLEST) & last)


def _nothing_cut(keys: Float[Array, "*batch n"], digits: int) -> Bool[Array, ""]:
    """Whether the bits left out are all 0, as in whole numbers or what was bfloat16: then the order is exact.

    Part of the list by part, since XLA writes out what a reduction reads.
    """
    width = keys.shape[-1] // _WIDTH
    *parts, last = (_bits(keys[..., start : start + width]) for start in range(0, keys.shape[-1], width))
    cut = jnp.int32(2 ** _spare(digits) - 1)
    return ((reduce(jnp.bitwise_or, parts) & cut).max() == 0) & ((last & cut).max() == 0)


def _descending(packed: Float[Array, "*batch n"], k: int) -> Float[Array, "*batch k"]:
    packed = lax.optimization_barrier(packed)
    best = [packed.max(axis=-1, keepdims=True)]
    for _ in range(k - 1):
        best.append(jnp.where(packed < best[-1], packed, jnp.zeros_like(packed)).max(axis=-1, keepdims=True))
    return jnp.concatenate(best, axis=-1)


def _group_maxima(keys: Float[Array, "*batch n"], digits: int) -> Float[Array, "*batch g"]:
    """Packed; group i holds the items i, i + g, i + 2 g, ...: so the list is read once and nothing else is written."""
    groups = keys.shape[-1] // _WIDTH
    place = lax.broadcasted_iota(jnp.int32, (*keys.shape[:-1], groups), keys.ndim - 1)
    starts = range(0, groups * _WIDTH, groups)
    return reduce(jnp.maximum, (_pack(keys[..., start : start + groups], place + start, digits) for start in starts))


def _members(maxima: Float[Array, "*batch g"], k: int, digits: int, n: int) -> Int[Array, "*batch c"]:
    """Where the items of the k groups of largest maximum are, and those of no group, at the end."""
    *batch, groups = maxima.shape
    first = _positions(_descending(maxima, k), digits) % groups
    step = lax.broadcasted_iota(jnp.int32, (*batch, k, _WIDTH), len(batch) + 1) * groups
    rest = n - groups * _WIDTH
    tail = lax.broadcasted_iota(jnp.int32, (*batch, rest), len(batch)) + (n - rest)
    return jnp.concatenate([(first[..., None] + step).reshape(*batch, -1), tail], axis=-1)


def _in_order(keys: Float[Array, "*batch n"], chosen: Int[Array, "*batch m"], count: int) -> Sequence:
    """The first of those chosen, whose leading bits are in order."""
    values, indices, _ = settle(_take(keys, chosen), chosen, chosen.shape[-1] ** 2)
    return [values[..., :count], indices[..., :count]]


def settle(
    values: Float[Array, "*batch m"], indices: Int[Array, "*batch m"], limit: int
) -> tuple[Float[Array, "*batch m"], Int[Array, "*batch m"], Bool[Array, ""]]:
    """Values, which are nearly so, in descending order by exchanges of neighbours, and their indices likewise.

    And whether that was not reached within `limit` rounds, each of which exchanges all pairs that do not overlap.
    """

    def unordered(values: Float[Array, "*batch m"]) -> Bool[Array, ""]:
        return (values[..., 1:] > values[..., :-1]).any()

    def again(state: tuple) -> Bool[Array, ""]:
        return state[2] & (state[3] < limit)

    def exchange(state: tuple) -> tuple:
        values, indices = _exchanged(*state[:2])
        return values, indices, unordered(values), state[3] + 1

    return lax.while_loop(again, exchange, (values, indices, unordered(values), 0))[:3]


def _exchanged(
    values: Float[Array, "*batch m"], indices: Int[Array, "*batch m"]
) -> tuple[Float[Array, "*batch m"], Int[Array, "*batch m"]]:
    """Neighbours exchanged where the second is larger; of pairs that overlap the first, and the third, ..."""
    edges = [(0, 0, 0)] * (values.ndim - 1)
    padded = lax.pad(
        lax.pad(values, jnp.float32(jnp.inf), [*edges, (2, 0, 0)]), jnp.float32(-jnp.inf), [*edges, (0, 1, 0)]
    )
    padded = lax.optimization_barrier(padded)
    larger = padded[..., 1:] > padded[..., :-1]  # than the one before: at 0, 1, ... that is place -1, 0, ...
    first = larger[..., 2:] & ~larger[..., 1:-1]
    second = larger[..., 1:-1] & ~larger[..., :-2]
    around = lax.optimization_barrier(lax.pad(indices, jnp.int32(0), [*edges, (1, 1, 0)]))
    return (
        jnp.where(first, padded[..., 3:], jnp.where(second, padded[..., 1:-2], values)),
        jnp.where(first, around[..., 2:], jnp.where(second, around[..., :-2], indices)),
    )


def _take(keys: Float[Array, "*batch n"], places: Int[Array, "*batch k"]) -> Float[Array, "*batch k"]:
    return wide(jnp.take_along_axis(keys, places, axis=-1, mode="promise_in_bounds"))
