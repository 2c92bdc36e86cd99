"""Scores -> order, with a tie rule. Every trick that makes selection fast on some platform lives here.

Keys are floating-point scores in which what has no rank is -inf: masked slots and items that were not retrieved.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import core, lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxrank._arrays import masked
from jaxrank._packed import settle
from jaxrank._selection import select
from jaxrank._typing import Indices, Lists, Mask, Ranked, Size, TieRule

Gain = Callable[[Float[Array, "..."]], Float[Array, "..."]]
OneEach = Float[Array, "*#batch 1"]

# Slots that a pass over whole lists takes at a time: half a MiB of working memory, few enough turns of the loop.
_BLOCK = 2**16


def rank_keys(scores: Shaped[Array, "*#batch n"], where: Mask | None, *, ties: TieRule = "average") -> Lists:
    """Scores as floating-point keys of the same order; masked slots are -inf.

    XLA's fast selection on CPU takes float32 alone (40 times faster than bfloat16 or integers), and every smaller
    type converts to it exactly. No copy is made of float32 scores without a mask, unless ties go by input order:
    `top_k` puts +0.0 above -0.0, which are equal as scores.
    """
    keys = masked(_as_float(lax.stop_gradient(scores)), where, -jnp.inf)
    return jnp.where(keys == 0, jnp.zeros_like(keys), keys) if ties == "stable" else keys


def _as_float(scores: Shaped[Array, "*batch n"]) -> Lists:
    dtype = jnp.float64 if scores.dtype.itemsize == 8 else jnp.float32
    if not jnp.issubdtype(scores.dtype, jnp.integer) or jnp.iinfo(scores.dtype).bits <= jnp.finfo(dtype).nmant:
        return scores.astype(dtype)
    # Integers beyond the significand would be tied by rounding: their dense ranks keep the exact order.
    limit = 2 ** (jnp.finfo(dtype).nmant + 1)
    large = (scores > limit) | (scores < -limit if jnp.issubdtype(scores.dtype, jnp.signedinteger) else False)
    return lax.cond(large.any(), lambda: _dense_ranks(scores).astype(dtype), lambda: scores.astype(dtype))


def _dense_ranks(values: Shaped[Array, "*batch n"]) -> Int[Array, "*batch n"]:
    """How many distinct values lie below each one."""
    index = lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)
    ascending, order = lax.sort((values, index), num_keys=1)
    ranks = jnp.cumsum(starts(ascending), axis=-1, dtype=jnp.int32)
    return lax.sort((order, ranks), num_keys=1)[1]


def starts(values: Shaped[Array, "*batch n"]) -> Bool[Array, "*batch n"]:
    """True where a value differs from the one before it, so False at the first."""
    return jnp.concatenate([jnp.zeros_like(values[..., :1], bool), values[..., 1:] != values[..., :-1]], axis=-1)


def has_nan(values: Float[Array, "*batch n"]) -> Bool[Array, "*batch 1"]:
    """Whether a list holds a NaN.

    `top_k` does not tell: it puts -NaN, which x86 makes, last. Nor does `max`: on CPU it drops NaN. A sum does keep
    it, and is the one check that reads the list once without writing a mask (0.07 ms against 0.35, 1024 x 1000);
    but inf - inf is NaN too, so that a NaN sum only asks for the real check.
    """
    if _small(values):
        return jnp.isnan(values).any(axis=-1, keepdims=True)
    suspect = jnp.isnan(values.sum(axis=-1, keepdims=True))
    return lax.cond(suspect.any(), lambda: jnp.isnan(values).any(axis=-1, keepdims=True), lambda: suspect)


def _small(values: Lists) -> bool:
    """Whether the calls of a program's parts, about a microsecond each, cost more than their work."""
    return all(isinstance(size, int) for size in values.shape) and math.prod(values.shape) < 8192


def top_k(keys: Lists, k: Size) -> tuple[Ranked, Indices]:
    """The k largest keys in descending order, equal ones in input order.

    The tricks are for CPU and static sizes, and float32, where they were measured; elsewhere XLA's own selection runs.
    """
    n = keys.shape[-1]
    if keys.dtype != jnp.float32 or not (isinstance(k, int) and isinstance(n, int)):
        return _plain_top_k(keys, k)
    # Measured, ms, two steps against one: K=10, 64 x 10 000 0.45 against 0.99, 8 x 100 000 0.26 against 1.20,
    # 1 x 1 000 000 0.23 against 1.57; K=1, 1024 x 1000 0.55 against 1.49. Nothing is gained at 1024 x 1000, K=10.
    if n >= 400 * k:
        on_cpu = partial(_two_step_top_k, k=k, width=32 if n >= 1024 * k else 16)
    elif 2 * k >= n >= 512 or k == n >= 64:  # there XLA falls back on a sort of floats with a comparator
        on_cpu = partial(_sorted_top_k, k=k)
    else:
        return _plain_top_k(keys, k)
    return lax.platform_dependent(keys, cpu=on_cpu, default=partial(_plain_top_k, k=k))


def _plain_top_k(keys: Lists, k: Size) -> tuple[Ranked, Indices]:
    """XLA's fast selection on CPU is a pattern match that a later slice destroys (27 to 77 times slower): the barriers
    keep it. They are two, because one around the pair aborts XLA's own decomposition of a sharded selection.
    """
    values, indices = select(keys, k)
    return lax.optimization_barrier(values), lax.optimization_barrier(indices)


def _two_step_top_k(keys: Lists, k: int, width: int) -> tuple[Ranked, Indices]:
    """Choose the k groups of largest maximum, then from their items: a long list is read once.

    Exact, ties too: an item outside them has k groups before it, by maximum or, if equal, by index, and each holds an
    item that precedes it.
    """
    *batch, n = keys.shape
    groups, rest = divmod(n, width)
    grouped = keys[..., : n - rest].reshape(*batch, groups, width)
    _, chosen = _plain_top_k(grouped.max(axis=-1), min(k, groups))
    chosen = lax.sort(chosen)[..., None]  # in index order, so that equal keys stay in input order
    candidates = jnp.take_along_axis(grouped, chosen, axis=-2).reshape(*batch, -1)
    places = chosen * width + lax.broadcasted_iota(jnp.int32, (*chosen.shape[:-1], width), chosen.ndim - 1)
    tail = lax.broadcasted_iota(jnp.int32, (*batch, rest), len(batch)) + (n - rest)
    values, winners = _plain_top_k(jnp.concatenate([candidates, keys[..., n - rest :]], axis=-1), k)
    return values, take(jnp.concatenate([places.reshape(*batch, -1), tail], axis=-1), winners)


def _sorted_top_k(keys: Lists, k: int) -> tuple[Ranked, Indices]:
    indices = descending_order(keys)[..., :k]
    return take(keys, indices), indices


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def largest(values: Lists, k: Size) -> Ranked:
    """The k largest values in descending order, without saying where they are."""
    n = values.shape[-1]
    if not (isinstance(k, int) and isinstance(n, int)) or n >= 400 * k or _small(values):
        return top_k(values, k)[0]
    return lax.platform_dependent(values, cpu=partial(_largest_grades, k=k), default=lambda some: top_k(some, k)[0])


@largest.defjvp
def _largest_jvp(k: Size, primals: tuple, tangents: tuple) -> tuple[Ranked, Ranked]:
    values, indices = top_k(primals[0], k)
    return values, take(tangents[0], indices)


def _largest_grades(values: Lists, k: int) -> Ranked:
    """Few distinct values, as grades are, need no selection: count each, from the largest down.

    Given up after six values, or as soon as the second shows that nothing repeats. Measured, ms, grades 0 to 4
    against selection: 1024 x 128, K=10 0.33 against 0.92; 1024 x 1000, K=10 0.59 against 2.31; all 2.5 against 44.
    """
    rank = lax.broadcasted_iota(jnp.int32, (1,) * (values.ndim - 1) + (k,), values.ndim - 1)

    def unfinished(state: tuple) -> Bool[Array, ""]:
        step, _, filled, value = state
        repeating = (step < 2) | (filled.sum() > step * filled.size)
        return repeating & (step < 6) & ((filled < k) & (value > -jnp.inf)).any()

    def fill(state: tuple) -> tuple:
        step, best, filled, value = state
        count = (values == value).astype(values.dtype).sum(axis=-1, keepdims=True).astype(jnp.int32)
        below = jnp.where(values < value, values, -jnp.inf).max(axis=-1, keepdims=True)
        return step + 1, jnp.where(rank >= filled, value, best), filled + count, below

    top = values.max(axis=-1, keepdims=True)
    nothing = jnp.broadcast_to(jnp.full_like(top, -jnp.inf), (*top.shape[:-1], k))
    _, best, filled, value = lax.while_loop(unfinished, fill, (0, nothing, jnp.zeros_like(top, jnp.int32), top))
    best = jnp.where(rank < filled, best, -jnp.inf)
    done = ((filled >= k) | (value == -jnp.inf)).all()
    return lax.cond(done, lambda: best, lambda: top_k(values, k)[0])


def descending_order(keys: Float[Array, "*batch n"]) -> Int[Array, "*batch n"]:
    """The stable order of float32 keys, largest first, by sorts of integers.

    XLA on CPU sorts one integer operand 5 times faster than floats or pairs. The leading bits of a key and its position
    fill one integer; what their sort leaves undone is few exchanges of neighbours, unless keys are very near to each
    other. Measured, ms, against `lax.sort` of (key, index): 1024 x 128 3.5 against 14.5, 1024 x 1000 38 against 160.
    """
    n = keys.shape[-1]
    if n > 2048:  # too few bits are left for the keys
        return _order_by_digits(keys)
    keys = lax.optimization_barrier(keys)
    low = max(1, (n - 1).bit_length())
    indices, failed = settle(keys, _order_by_bits(_descending_bits(keys) >> low, low), limit=12)
    return lax.cond(failed, lambda: _order_by_digits(keys), lambda: indices)


def _order_by_digits(keys: Float[Array, "*batch n"]) -> Int[Array, "*batch n"]:
    """A radix sort: by a digit and the position, from the lowest digit; two or three order all 32 bits.

    Measured, ms, against `lax.sort` of (key, index): 1024 x 128 5.6 against 14.5, 1 x 1 000 000 149 against 258.
    """
    low = max(1, (keys.shape[-1] - 1).bit_length())
    bits, order = _descending_bits(lax.optimization_barrier(keys)), None
    for start in range(0, 32, 32 - low):
        step = _order_by_bits(bits >> start, low)
        bits, order = take(bits, step), step if order is None else take(order, step)
    assert order is not None
    return order


def _order_by_bits(bits: Shaped[Array, "*batch n"], low: int) -> Int[Array, "*batch n"]:
    """The stable order, ascending, of the lowest 32 - `low` bits; `low` hold a position."""
    position = lax.broadcasted_iota(jnp.uint32, bits.shape, bits.ndim - 1)
    packed = lax.sort((bits << low) | position, is_stable=False)
    return (packed & jnp.uint32(2**low - 1)).astype(jnp.int32)


def _descending_bits(keys: Float[Array, "*batch n"]) -> Shaped[Array, "*batch n"]:
    """float32 as unsigned integers in the opposite order; -0.0 as 0.0, NaN in either end."""
    bits = lax.bitcast_convert_type(jnp.where(keys == 0, jnp.zeros_like(keys), keys), jnp.int32)
    return lax.bitcast_convert_type(jnp.where(bits < 0, bits, jnp.int32(2**31 - 1) - bits), jnp.uint32)


def take(values: Shaped[Array, "*#batch n"], indices: Indices) -> Shaped[Array, "*#batch k"]:
    batch = jnp.broadcast_shapes(values.shape[:-1], indices.shape[:-1])
    values = jnp.broadcast_to(values, (*batch, values.shape[-1]))
    return jnp.take_along_axis(values, jnp.broadcast_to(indices, (*batch, indices.shape[-1])), axis=-1)


def gains_at(labels: Lists, indices: Indices, valid: Bool[Array, "*#batch k"], gain: Gain) -> Ranked:
    """Gains of the items at `indices`, 0 where not valid."""
    return valid_gains(take(labels, indices), valid, gain)


def valid_gains(labels: Lists, valid: Mask, gain: Gain) -> Lists:
    """0 where not valid; whatever an invalid label is, its gradient is 0."""
    zero = jnp.zeros_like(labels)
    return jnp.where(valid, gain(jnp.where(valid, labels, zero)), zero)


def ranked_gains(keys: Lists, labels: Lists, gain: Gain, k: Size, ties: TieRule) -> Ranked:
    """The gain at each of the first k ranks; inside a tied group the group's mean, unless `ties` says otherwise."""
    if ties in ("best", "worst"):  # each set of labels has an order of its own
        keys = jnp.broadcast_to(keys, jnp.broadcast_shapes(keys.shape, labels.shape))
    # One rank more than asked for shows whether a tie goes on past the cutoff.
    more, indices = top_k(keys, core.min_dim(k + 1, keys.shape[-1]))
    values, indices = more[..., :k], indices[..., :k]
    if ties in ("best", "worst"):
        indices = _order_ties(keys, values, indices, gain(labels) if ties == "best" else -gain(labels))
    gains = gains_at(labels, indices, values > -jnp.inf, gain)
    if ties != "average" or keys.shape[-1] == 0:
        return gains
    tied = (more[..., 1:] == more[..., :-1]) & (more[..., 1:] > -jnp.inf)
    # Ties are rare in real scores, and without them this costs nothing.
    return lax.cond(tied.any(), lambda: _average_ties(keys, labels, gain, values, gains), lambda: gains)


def _average_ties(keys: Lists, labels: Lists, gain: Gain, values: Ranked, gains: Ranked) -> Ranked:
    """Mean gain of each tied group.

    A mean is taken as one member's gain plus the mean difference from it: a group of equal gains is exact, so that a
    perfect order is exactly 1.
    """
    few = isinstance(values.shape[-1], int) and values.shape[-1] <= 32
    means = _pairwise_means if few else _means_of_equal
    averaged = means(values, gains)
    if values.shape[-1] != keys.shape[-1]:  # else no group goes on past the last rank
        last = _last_group_mean(keys, labels, gain, values[..., -1:], gains[..., -1:])
        averaged = jnp.where(values == values[..., -1:], last, averaged)
    return jnp.where(values > -jnp.inf, averaged, jnp.zeros_like(averaged))


def _last_group_mean(keys: Lists, labels: Lists, gain: Gain, last: OneEach, reference: OneEach) -> OneEach:
    """The mean of the group at the cutoff, which may go on past it: one pass over the whole list."""

    def count_and_difference(keys: Lists, labels: Lists) -> Float[Array, "2 *batch 1"]:
        member = (keys == last) & (last > -jnp.inf)
        zero = jnp.zeros_like(labels)
        difference = jnp.where(member, gain(jnp.where(member, labels, zero)) - reference, jnp.zeros_like(reference))
        count = jnp.where(member, jnp.ones_like(difference), jnp.zeros_like(difference))
        return jnp.stack([part.sum(axis=-1, keepdims=True) for part in (count, difference)])

    count, difference = _sum_over_blocks(count_and_difference, keys, labels)
    return reference + difference / jnp.maximum(count, 1)


def _sum_over_blocks(term: Callable[[Lists, Lists], Array], keys: Lists, labels: Lists) -> Array:
    """`term(keys, labels)`, which sums over the list, a block at a time.

    XLA on CPU writes out what a reduction reads: in one go that is two copies of the list. As fast, measured on
    1024 x 1000 to 8 x 100 000.
    """
    *batch, n = keys.shape
    if not all(isinstance(size, int) for size in keys.shape):
        return term(keys, labels)
    width = max(256, _BLOCK // max(1, math.prod(batch)))
    if n < 2 * width:
        return term(keys, labels)

    def add(i: Array, total: Array) -> Array:
        block = partial(lax.dynamic_slice_in_dim, start_index=i * width, slice_size=width, axis=-1)
        return total + term(block(keys), block(labels))

    rest = n - n % width
    return lax.fori_loop(0, n // width, add, term(keys[..., rest:], labels[..., rest:]))


def _pairwise_means(values: Ranked, gains: Ranked) -> Ranked:
    """Each rank's mean over the ranks of equal value: compared with one rank after the other.

    One pass that writes nothing but the means. Measured, ms, against a table of all pairs: 1024 x 10 0.12 against 0.32,
    4096 x 32 0.6 against 15.
    """
    difference, count = jnp.zeros_like(gains), jnp.zeros_like(gains)
    for rank in range(values.shape[-1]):
        equal, gain = values == values[..., rank : rank + 1], gains[..., rank : rank + 1]
        difference += jnp.where(equal, gain - gains, jnp.zeros_like(gains))
        count += jnp.where(equal, jnp.ones_like(gains), jnp.zeros_like(gains))
    return gains + difference / count


def _means_of_equal(values: Ranked, gains: Ranked) -> Ranked:
    return group_means(starts(values), gains)


def group_means(begins: Mask, gains: Ranked) -> Ranked:
    """Each rank's mean over its group, given where groups begin, by one scatter between two scans.

    Measured on CPU: 1024 x 128 1.0 ms; 1024 x 1000 9 ms, where three scatters take 25; all pairs at 1024 x 200 114.
    """
    n, axis = begins.shape[-1], begins.ndim - 1
    place = lax.broadcasted_iota(jnp.int32, begins.shape, axis)
    first = lax.cummax(jnp.where(begins, place, 0), axis=axis)
    later = lax.cummin(jnp.where(begins, place, n), axis=axis, reverse=True)
    end = jnp.concatenate([later[..., 1:], jnp.full_like(later[..., :1], n)], axis=-1)
    first, size = (jnp.broadcast_to(each, gains.shape) for each in (first, end - first))
    reference = take(gains, first)
    return reference + take(_sum_by_group(first, gains - reference), first) / size.astype(gains.dtype)


@partial(jnp.vectorize, signature="(k),(k)->(k)")
def _sum_by_group(first: Int[Array, " k"], gains: Float[Array, " k"]) -> Float[Array, " k"]:
    return jnp.zeros_like(gains).at[first].add(gains)


def _order_ties(keys: Lists, values: Ranked, indices: Indices, preference: Lists) -> Indices:
    """Indices of the first k ranks with every tie in descending order of `preference`, the last group's included."""
    preference = lax.stop_gradient(jnp.broadcast_to(preference, keys.shape))
    descending = lax.sort((-values, -take(preference, indices), indices), num_keys=2)[2]
    # Of the last group the cutoff may hold the wrong members: choose them from the whole list.
    last = values[..., -1:]
    _, group = top_k(jnp.where(keys == last, preference, -jnp.inf), values.shape[-1])
    above = (values > last).sum(axis=-1, keepdims=True, dtype=jnp.int32)
    rank = lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)
    return jnp.where(rank < above, descending, take(group, jnp.maximum(rank - above, 0)))
