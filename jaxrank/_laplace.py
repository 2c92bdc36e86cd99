"""Sums with the Laplace kernel `exp(-|s_i - s_j| / t)` over sorted lists, in O(n) work and memory.

Along the order the kernel is a product of the decays between neighbours, so the sum over all items before (or after)
each item is a first-order linear recurrence.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxrank._gaps import Gaps, any_list, tie_starts, tied_groups
from jaxrank._typing import Indices, Lists, Mask


def sums_beside(x: Lists, gap: Lists) -> tuple[Lists, Lists]:
    """`sum_j exp(-|s_i - s_j| / t) x_j` over the items j before each item i in the order, and over those after it."""
    following = jnp.concatenate([gap[..., 1:], jnp.zeros_like(gap[..., :1])], axis=-1)
    return recurrence(x, gap), jnp.flip(recurrence(jnp.flip(x, -1), jnp.flip(following, -1)), -1)


class Kernel(NamedTuple):
    """The kernel between the places of a sorted list and its items, which differ where scores are tied.

    A place moves with the mean of the items tied there, and has no derivative by any one of them: the derivative of
    |x| at 0 is 0. So the sums before and after a place stop at its group, and three distances inside the group, all
    of them 0, bring in the derivatives.
    """

    gap: Lists
    starts: Mask
    first: Indices
    last: Indices
    from_first: Lists  # (s_first - s_item) / t
    to_last: Lists  # (s_item - s_last) / t
    to_place: Lists  # (s_place - s_item) / t


def kernel(gaps: Gaps) -> Kernel:
    starts = tie_starts(gaps)
    first, last = tied_groups(starts)
    item = -jnp.cumsum(gaps.gap, axis=-1)
    total = jnp.cumsum(item, axis=-1)
    mean = (_take(total, last) - _take(total - item, first)) / (last - first + 1).astype(total.dtype)
    to_place = jnp.where(first == last, 0, mean - item)
    zeros = _zero(_take(item, first) - item), _zero(item - _take(item, last)), _zero(to_place)
    return Kernel(gaps.gap, starts, first, last, *zeros)


def _take(array: Array, indices: Indices) -> Array:
    return jnp.take_along_axis(array, indices, axis=-1)


def _zero(distance: Lists) -> Lists:
    """0 with the derivative of `distance`, which is 0 but for rounding."""
    return distance - lax.stop_gradient(distance)


def times(kernel: Kernel, x: Lists) -> Lists:
    """`sum_j exp(-|place_i - item_j| / t) x_j`."""
    before, after = sums_beside(x, kernel.gap)
    before = _take(before, kernel.first) * jnp.exp(kernel.to_place - kernel.from_first)
    after = _take(after, kernel.last) * jnp.exp(-kernel.to_place - kernel.to_last)
    return before + _group_sums(kernel, x) + after


def transposed_times(kernel: Kernel, x: Lists) -> Lists:
    """`sum_i exp(-|place_i - item_j| / t) x_i`."""
    before, _ = sums_beside(x * jnp.exp(-kernel.to_place), kernel.gap)
    _, after = sums_beside(x * jnp.exp(kernel.to_place), kernel.gap)
    before = _take(before, kernel.first) * jnp.exp(-kernel.from_first)
    after = _take(after, kernel.last) * jnp.exp(-kernel.to_last)
    return before + _group_sums(kernel, x) + after


def _group_sums(kernel: Kernel, x: Lists) -> Lists:
    """The sum over each item's tied group."""

    def sums(x: Lists) -> Lists:
        before, after = sums_beside(x, jnp.where(kernel.starts, jnp.inf, jnp.zeros_like(kernel.gap)))
        return before + x + after

    return lax.cond(any_list(~kernel.starts).any(), sums, lambda x: x, x)


def recurrence(x: Lists, gap: Lists) -> Lists:
    """`sums_d = exp(-gap_d) (sums_{d-1} + x_{d-1})`.

    Two scans of about sqrt(n) steps: through all blocks at once, then from block to block. As fast on CPU as
    `lax.associative_scan` and compiled 8 times faster (n = 2048, with the gradient: 0.5 s against 4.5).
    """
    n = x.shape[-1]
    if n == 0:
        return x
    x, gap = _blocks(x), _blocks(gap)

    def within(total, item):
        decay, x = item
        total = decay * total
        return total + x, total

    block_totals, totals = lax.scan(within, jnp.zeros_like(x[0]), (jnp.exp(-gap), x))
    # One exponential of a sum of gaps has the digits that a long product of decays has not.
    reach = jnp.exp(-jnp.cumsum(gap, axis=0))

    def between(carried, block):
        total, reach = block
        return total + reach * carried, carried

    blocks = jnp.moveaxis(block_totals, -1, 0), jnp.moveaxis(reach[-1], -1, 0)
    _, carried = lax.scan(between, jnp.zeros_like(blocks[0][0]), blocks)
    totals = totals + reach * jnp.moveaxis(carried, 0, -1)[None]
    return jnp.moveaxis(totals, 0, -1).reshape(*totals.shape[1:-1], -1)[..., :n]


def _blocks(array: Lists) -> Array:
    """`[..., n]` as `[length, ..., blocks]`."""
    n = array.shape[-1]
    length = 1 << (n.bit_length() // 2)
    padding = [(0, 0)] * (array.ndim - 1) + [(0, -n % length)]
    return jnp.moveaxis(jnp.pad(array, padding).reshape(*array.shape[:-1], -1, length), -1, 0)
