"""Rank -> discount: how much a gain counts at a 1-based rank."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrank._typing import DiscountFn


def log2_discount(ranks: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`1 / log2(rank + 1)`, the discount of nearly every NDCG.

    Args:
      ranks: 1-based ranks, floating point, any shape.

    Returns:
      Discounts of the same shape and dtype.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxrank
      >>> jaxrank.log2_discount(jnp.array([1.0, 3.0]))
      Array([1. , 0.5], dtype=float32)

    References:
      Burges et al. (2005), Learning to rank using gradient descent.
    """
    return 1 / jnp.log2(ranks + 1)


def reciprocal_discount(ranks: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """`1 / rank`: the discount of the reciprocal rank.

    Args:
      ranks: 1-based ranks, floating point, any shape.

    Returns:
      Discounts of the same shape and dtype.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxrank
      >>> jaxrank.reciprocal_discount(jnp.array([1.0, 4.0]))
      Array([1.  , 0.25], dtype=float32)

    References:
      Voorhees (1999), The TREC-8 question answering track report.
    """
    return 1 / ranks


@dataclasses.dataclass(frozen=True)
class _GeometricDiscount:
    p: float

    def __call__(self, ranks: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        return jnp.power(jnp.asarray(self.p, ranks.dtype), ranks - 1)


def geometric_discount(p: float | int) -> DiscountFn:
    """`p^(rank - 1)`: a reader who goes on to the next rank with probability p, as in rank-biased precision.

    Args:
      p: persistence, 0 < p < 1.

    Returns:
      A discount function. Two of the same p are equal, so they share one compilation.

    Raises:
      ValueError: if p is not between 0 and 1.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxrank
      >>> jaxrank.geometric_discount(0.5)(jnp.array([1.0, 2.0, 3.0]))
      Array([1.  , 0.5 , 0.25], dtype=float32)

    References:
      Moffat and Zobel (2008), Rank-biased precision for measurement of retrieval effectiveness.
    """
    if not 0 < p < 1:
        raise ValueError(f"geometric_discount needs 0 < p < 1; got {p!r}.")
    return _GeometricDiscount(float(p))
