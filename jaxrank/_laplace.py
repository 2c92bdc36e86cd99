"""Sums with the Laplace kernel `exp(-|s_i - s_j| / t)` over sorted lists, in O(n) work and memory.

Along the order the kernel is a product of the decays between neighbours, so the sum over all items before (or after)
each item is a first-order linear recurrence.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array

from jaxrank._gaps import Gaps, tie_starts, tied_groups
from jaxrank._typing import Indices, Lists


class Kernel(NamedTuple):
    """Values come from the gaps, derivatives from the positions: those of the items summed, and of the places they
    are summed at. The two differ in a tied group, which moves as one place in the order but not as one item.
    """

    gap: Lists
    items: Lists
    places: Lists
    first: Indices | None  # the tied group of each position, whose items are neither before nor after it;
    last: Indices | None  # None: the order decides


def kernel(gaps: Gaps) -> Kernel:
    position = -jnp.cumsum(gaps.gap, axis=-1)
    return Kernel(lax.stop_gradient(gaps.gap), position, position, None, None)


def tied_kernel(gaps: Gaps) -> Kernel:
    """The derivative of |x| at 0 is 0: items tied with a place have none by it, and the place is their mean."""
    plain = kernel(gaps)
    first, last = tied_groups(tie_starts(gaps))
    total = jnp.cumsum(plain.items, axis=-1)
    take = jnp.take_along_axis
    group = take(total, last, axis=-1) - take(total - plain.items, first, axis=-1)
    mean = group / (last - first + 1).astype(total.dtype)
    return plain._replace(places=jnp.where(first == last, plain.items, mean), first=first, last=last)


def swapped(kernel: Kernel) -> Kernel:
    """The transposed kernel."""
    return kernel._replace(items=kernel.places, places=kernel.items)


class Sums(NamedTuple):
    """`sum_j exp(-|items_j - places_i|) x_j` over all items j, and over those before and after place i."""

    around: Lists
    before: Lists
    after: Lists


@jax.custom_jvp
def sums(x: Lists, kernel: Kernel) -> Sums:
    before = _recurrence(x, kernel.gap)
    following = jnp.concatenate([kernel.gap[..., 1:], jnp.zeros_like(kernel.gap[..., :1])], axis=-1)
    after = jnp.flip(_recurrence(jnp.flip(x, -1), jnp.flip(following, -1)), -1)
    around = before + x + after
    if kernel.first is None or kernel.last is None:
        return Sums(around, before, after)
    take = jnp.take_along_axis
    return Sums(around, take(before, kernel.first, axis=-1), take(after, kernel.last, axis=-1))


def _sums_jvp(primals, tangents):
    (x, kernel), (x_tangent, moved) = primals, tangents
    at = sums(x, kernel)
    by_items = sums(x * _tangent(moved.items), kernel)
    by_places = jax.tree.map(lambda total: total * _tangent(moved.places), at)
    tangent = Sums(
        by_places.before - by_places.after + by_items.after - by_items.before,
        by_places.before - by_items.before,
        by_items.after - by_places.after,
    )
    if isinstance(x_tangent, SymbolicZero):
        return at, tangent
    return at, jax.tree.map(jnp.add, tangent, sums(x_tangent, kernel))


sums.defjvp(_sums_jvp, symbolic_zeros=True)


def _tangent(tangent: Array | SymbolicZero) -> Array:
    return jnp.zeros(tangent.shape, tangent.dtype) if isinstance(tangent, SymbolicZero) else tangent


def _recurrence(x: Lists, gap: Lists) -> Lists:
    """`sums_d = exp(-gap_d) (sums_{d-1} + x_{d-1})`.

    Two scans of about sqrt(n) steps: through all blocks at once, then from block to block. As fast on CPU as
    `lax.associative_scan` and compiled 8 times faster (n = 2048, with the gradient: 0.5 s against 4.5).
    """
    n = x.shape[-1]
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
