"""Array aliases and the Protocols of the pluggable parts."""

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num, Shaped

# What a public function accepts: its border (`_arrays`) says in plain words what does not fit.
ArrayLike: TypeAlias = jax.Array | np.ndarray | np.generic | bool | int | float | list | tuple | object
Cutoffs: TypeAlias = object  # None, an int >= 1, or a tuple of them: checked by `_arrays.check_cutoffs`
Checked: TypeAlias = Any  # an option that the border checks, in plain words
Size: TypeAlias = Any  # an int, or symbolic under `jax.export`
TieRule: TypeAlias = Literal["average", "stable", "best", "worst"]

Reals: TypeAlias = Num[Array, "..."] | Bool[Array, "..."]
# Batch axes broadcast: one set of labels, or one mask, serves the scores of many models.
Lists: TypeAlias = Float[Array, "*#batch n"]
Ranked: TypeAlias = Float[Array, "*#batch k"]
Indices: TypeAlias = Int[Array, "*#batch k"]
Mask: TypeAlias = Bool[Array, "*#batch n"]
Values: TypeAlias = Shaped[Array, "..."]


@runtime_checkable
class GainFn(Protocol):
    """Elementwise label -> gain, `[...] -> [...]`. With a true attribute `monotone`, never decreasing in the label."""

    def __call__(self, labels: Float[Array, "..."], /) -> Float[Array, "..."]: ...


@runtime_checkable
class DiscountFn(Protocol):
    """Elementwise 1-based rank -> discount, `[k] -> [k]`, positive and not increasing."""

    def __call__(self, ranks: Float[Array, "..."], /) -> Float[Array, "..."]: ...


@runtime_checkable
class Relaxation(Protocol):
    """Scores -> the first k rows of a relaxed permutation matrix, `[..., n] -> [..., k, n]`."""

    def __call__(
        self, scores: Lists, *, k: int | None, where: Mask | None, temperature: Float[Array, "..."] | float
    ) -> Float[Array, "*batch k n"]: ...


ReduceFn: TypeAlias = Callable[..., Float[Array, "..."]]  # as jnp.mean: reduce_fn(values, where=mask)
