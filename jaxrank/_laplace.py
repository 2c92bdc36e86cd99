"""Sums with the Laplace kernel `exp(-|s_i - s_j| / t)` over sorted lists, in O(n) work and memory.

Along the order the kernel is a product of the decays between neighbours, so the sum over all items before (or after)
each item is a first-order linear recurrence.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
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
    last: Indices | None  # without, the order decides


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


def _mirrored(kernel: Kernel) -> Kernel:
    following = jnp.concatenate([kernel.gap[..., 1:], jnp.zeros_like(kernel.gap[..., :1])], axis=-1)
    end = kernel.gap.shape[-1] - 1
    first, last = (None if group is None else end - _flip(group) for group in (kernel.last, kernel.first))
    return Kernel(_flip(following), -_flip(kernel.items), -_flip(kernel.places), first, last)


def _flip(array: Array) -> Array:
    return jnp.flip(array, axis=-1)


@jax.custom_jvp
def before(x: Lists, kernel: Kernel) -> Lists:
    """`sum_j exp(-(items_j - places_i)) x_j` over the items j before place i."""
    sums = _recurrence(x, kernel.gap)
    return sums if kernel.first is None else jnp.take_along_axis(sums, kernel.first, axis=-1)


@before.defjvp
def _before_jvp(primals, tangents):
    (x, kernel), (x_tangent, moved) = primals, tangents
    sums = before(x, kernel)
    return sums, before(x_tangent - x * moved.items, kernel) + sums * moved.places


def after(x: Lists, kernel: Kernel) -> Lists:
    return _flip(before(_flip(x), _mirrored(kernel)))


@jax.custom_jvp
def around(x: Lists, kernel: Kernel) -> Lists:
    """`sum_j exp(-|items_j - places_i|) x_j` over all items j."""
    plain = kernel._replace(first=None, last=None)
    return before(x, plain) + x + after(x, plain)


@around.defjvp
def _around_jvp(primals, tangents):
    (x, kernel), (x_tangent, moved) = primals, tangents
    by_place = (before(x, kernel) - after(x, kernel)) * moved.places
    by_item = after(x * moved.items, kernel) - before(x * moved.items, kernel)
    return around(x, kernel), around(x_tangent, kernel) + by_place + by_item


def _recurrence(x: Lists, gap: Lists) -> Lists:
    """`sums_d = exp(-gap_d) (sums_{d-1} + x_{d-1})`."""
    decay = jnp.exp(-gap)
    _, inclusive = lax.associative_scan(_compose, (decay, x), axis=x.ndim - 1)
    return decay * jnp.concatenate([jnp.zeros_like(x[..., :1]), inclusive[..., :-1]], axis=-1)


def _compose(left, right):
    return left[0] * right[0], right[0] * left[1] + right[1]
