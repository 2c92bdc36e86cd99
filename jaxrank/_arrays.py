"""The border: the one place that checks, casts, moves axes and divides safely.

`check_*` and `as_array` run at every call, outside `jit`; `as_lists` runs while tracing, so that its checks cost
nothing once a shape is compiled.
"""

import difflib
import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jaxtyping import Array, Float, Shaped

from jaxrank._typing import ArrayLike, Cutoffs, Mask, Size

# ---------------------------------------------------------------------------------------------------- at every call


def as_array(name: str, value: ArrayLike) -> jax.Array | np.ndarray:
    """Any array, list or table column as something `jit` takes."""
    if isinstance(value, jax.Array):
        return value
    if value is None or isinstance(value, str):
        raise TypeError(f"{name} must be an array of real numbers; got {value!r}.")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):  # lists that hold traced values, or that are ragged
        return _stack(name, value)
    if array.dtype == object:
        return _stack(name, value)
    if array.dtype.kind in "USMm":
        raise TypeError(f"{name} must hold real numbers; got dtype {array.dtype}.")
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        return _narrow(name, array)
    if isinstance(value, (list, tuple)) and array.dtype == np.float64:
        return array.astype(jax.dtypes.canonicalize_dtype(np.float64))
    return array


def as_optional(name: str, value: ArrayLike) -> jax.Array | np.ndarray | None:
    return None if value is None else as_array(name, value)


def as_mask(where: ArrayLike) -> jax.Array | np.ndarray | None:
    return as_optional("where", where)


def _stack(name: str, value: ArrayLike) -> jax.Array:
    try:
        return jnp.asarray(value)
    except (ValueError, TypeError) as error:
        raise TypeError(
            f"{name} must be an array of real numbers; got {type(value).__name__}{_content(value)}"
        ) from error


def _content(value: object) -> str:
    """Why the elements make no array."""
    elements = list(value) if isinstance(value, Iterable) and not isinstance(value, dict) else []
    if any(isinstance(element, Iterable) and not isinstance(element, str) for element in elements):
        return ". Ragged lists must be padded to one length and the padding masked by `where`."
    kinds = ", ".join(dict.fromkeys(type(element).__name__ for element in elements))
    if isinstance(value, np.ndarray):
        return f" of {kinds} (dtype {value.dtype}). If they are numbers, give .astype(float)."
    return f" of {kinds}." if kinds else "."


def _narrow(name: str, array: np.ndarray) -> np.ndarray:
    """64-bit integers as JAX would store them, but never wrapped around."""
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    if dtype != array.dtype and array.size:
        info = np.iinfo(dtype)
        if array.min() < info.min or array.max() > info.max:
            raise ValueError(
                f"{name} holds integers outside {dtype.name} ({array.min()} to {array.max()}); "
                "enable 64-bit types (jax.config.update('jax_enable_x64', True)) or rescale them."
            )
    return array.astype(dtype)


def check_cutoffs(k: Cutoffs) -> int | tuple[int, ...] | None:
    """`k` as None, an int, or a tuple of ints, all at least 1."""
    if k is None or (type(k) is int and k >= 1):
        return k
    if isinstance(k, tuple):
        if not k:
            raise ValueError("k is an empty tuple; give at least one cutoff, or None for the whole list.")
        return tuple(_check_cutoff(cutoff) for cutoff in k)
    return _check_cutoff(k)


def _check_cutoff(k: object) -> int:
    if isinstance(k, core.Tracer):
        raise TypeError(
            "k must be known when the function is compiled, but it is traced; "
            "mark it static (jax.jit(f, static_argnames='k')) or close over it."
        )
    try:
        if isinstance(k, (bool, np.bool_)):
            raise TypeError
        k = operator.index(k)  # pyright: ignore[reportArgumentType]
    except TypeError:
        misplaced = isinstance(k, (list, np.ndarray, jax.Array))
        order = " Arguments are scores, labels, k; a mask goes by name, where=..." if misplaced else ""
        raise TypeError(
            f"k must be None, an int or a tuple of ints; got {k!r} of type {type(k).__name__}.{order}"
        ) from None
    if k < 1:
        raise ValueError(f"k must be at least 1; got {k}. Use None for the whole list.")
    return k


def check_option(name: str, value: object, options: Sequence[str]) -> None:
    if value not in options:
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, options))}; got {value!r}.{nearest(value, options)}"
        )


def nearest(value: object, options: Sequence[str]) -> str:
    """A hint at the option that was meant, if one is near."""
    near = difflib.get_close_matches(str(value), options, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


FUNCTIONS = {
    "gain_fn": ("jaxrank.exponential_gain", "jaxrank.linear_gain", "jaxrank.table_gain(values)"),
    "discount_fn": ("jaxrank.log2_discount", "jaxrank.reciprocal_discount", "jaxrank.geometric_discount(p)"),
    "relaxation": ("jaxrank.neural_sort", "jaxrank.soft_sort"),
    "reduce_fn": ("jnp.mean", "jnp.sum"),
}


def check_function(name: str, value: object) -> None:
    if not callable(value):
        raise TypeError(f"{name} must be a function such as {', '.join(FUNCTIONS[name])}; got {value!r}.")
    try:
        hash(value)
    except TypeError as error:
        raise TypeError(f"{name} must be hashable, since it selects the compiled program; got {value!r}.") from error


def check_number(name: str, value: ArrayLike) -> jax.Array | np.ndarray | float:
    """A real number (or array of them) that may be traced."""
    if isinstance(value, (int, float, jax.Array)):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be a number; got {value!r}.")
    return array


# --------------------------------------------------------------------------------------------------- while tracing


class ListArrays(NamedTuple):
    """Arrays of equal rank whose last axis is the list; the other axes broadcast."""

    scores: Shaped[Array, "*scores n"]
    labels: Float[Array, "*labels n"]
    where: Shaped[Array, "*where n"] | None


def as_lists(scores: Array, labels: Array, where: Array | None, axis: int) -> ListArrays:
    """Checked, list axis last, labels in the dtype of the result; scores keep theirs (see `ordering.rank_keys`)."""
    given = {"scores": scores, "labels": labels} | ({} if where is None else {"where": where})
    _check_shapes(given, axis)
    # XLA would sort and count what it knows when it compiles, as labels that a function closes over, and is slow at
    # it: of 1024 x 1000 for minutes.
    given = {name: jax.lax.optimization_barrier(array) for name, array in given.items()}
    dtype = result_dtype(scores, labels)
    ndim = max(array.ndim for array in given.values())
    lists = {name: expand(jnp.moveaxis(array, axis, -1), ndim) for name, array in given.items()}
    valid = None if where is None else lists["where"].astype(bool)
    return ListArrays(lists["scores"], lists["labels"].astype(dtype), valid)


def as_list(name: str, values: Array, like: Float[Array, "*like n"], axis: int) -> Float[Array, "*batch m"]:
    """One more array of lists, of a length of its own, to go with `like`."""
    check_real(name, values)
    if not -values.ndim <= axis < values.ndim:
        raise ValueError(f"axis {axis} is out of range for {name} of shape {values.shape}.")
    lists = expand(jnp.moveaxis(values, axis, -1), like.ndim).astype(like.dtype)
    try:
        jnp.broadcast_shapes(lists.shape[:-1], like.shape[:-1])
    except ValueError as error:
        raise ValueError(
            f"the batch axes of {name} {values.shape} do not broadcast with {like.shape[:-1]}, those of the labels."
        ) from error
    return lists


def _check_shapes(given: dict[str, Array], axis: int) -> None:
    if not hasattr(axis, "__index__"):
        raise TypeError(f"axis must be an int, the list axis; got {axis!r}.")
    shapes = ", ".join(f"{name} {array.shape}" for name, array in given.items())
    for name, array in given.items():
        check_real(name, array)
        if not -array.ndim <= axis < array.ndim:
            raise ValueError(f"axis {axis} is out of range for {name} of shape {array.shape} (got {shapes}).")
    lengths = {array.shape[axis] for array in given.values()}
    if len(lengths) > 1:
        raise ValueError(
            f"the arrays must have lists of equal length along axis {axis}; got {shapes}. "
            "Pad the shorter ones and mask the padding by `where`, or name another `axis`."
        )
    try:
        jnp.broadcast_shapes(*(_batch_shape(array, axis) for array in given.values()))
    except ValueError as error:
        raise ValueError(
            f"the batch axes do not broadcast: got {shapes}, list axis {axis}. "
            "Batch axes must be equal, 1 or absent; is one array transposed?"
        ) from error


def check_real(name: str, array: Array) -> None:
    kinds = jnp.floating, jnp.integer, jnp.bool_
    if not any(jnp.issubdtype(array.dtype, kind) for kind in kinds):
        raise TypeError(f"{name} must hold real numbers; got dtype {array.dtype}.")


def _batch_shape(array: Array, axis: int) -> tuple[Size, ...]:
    axis %= array.ndim
    return array.shape[:axis] + array.shape[axis + 1 :]


def expand(array: Array, ndim: int) -> Array:
    """Leading axes of length 1, since ranks are never promoted silently."""
    return jnp.expand_dims(array, tuple(range(ndim - array.ndim)))


def result_dtype(*arrays: Array) -> np.dtype:
    """float64 if any input is 64 bits wide, else float32: low precision is never accumulated in."""
    return np.dtype(np.float64 if any(array.dtype.itemsize == 8 for array in arrays) else np.float32)


def cutoff_list(k: Cutoffs, n: Size) -> tuple[Size, ...]:
    """The cutoffs of a list of n, none beyond its end. (`min_dim`, because n is symbolic under `jax.export`.)"""
    cutoffs = (n,) if k is None else k if isinstance(k, tuple) else (k,)
    return tuple(core.min_dim(cutoff, n) for cutoff in cutoffs)


def depth(k: Cutoffs, n: Size) -> Size:
    """How many ranks the deepest cutoff reads."""
    return cutoff_list(max(k) if isinstance(k, tuple) else k, n)[0]


def positions_along(array: jax.Array | np.ndarray, axis: int) -> jax.Array:
    """0, -1, -2, ...: scores that rank a list as it stands."""
    if not -array.ndim <= axis < array.ndim:
        raise ValueError(f"axis {axis} is out of range for an array of shape {array.shape}.")
    return -jax.lax.broadcasted_iota(jnp.int32, array.shape, axis % array.ndim)


def masked(array: Float[Array, "*#batch n"], where: Mask | None, fill: float) -> Float[Array, "*batch n"]:
    return array if where is None else jnp.where(where, array, jnp.asarray(fill, array.dtype))


def wide(array: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """In float32 if less. XLA's fast selection on CPU takes float32 alone (40 times faster than bfloat16 or integers),
    but a copy of the list, 4 MiB at 1024 x 1000, takes a fifth to a third of the time of the metric.
    """
    return array.astype(jnp.float32) if array.dtype.itemsize < 4 else array


def safe_divide(
    numerator: Float[Array, "*#batch"], denominator: Float[Array, "*#batch"], empty: Array
) -> Float[Array, "*batch"]:
    """The ratio, or `empty` where the denominator is 0. Two `where`s, so that the gradient is finite there too."""
    zero = denominator == 0
    ratio = numerator / jnp.where(zero, jnp.ones_like(denominator), denominator)
    return jnp.where(zero, empty.astype(ratio.dtype), ratio)


def restore_axis(
    values: Float[Array, "*batch c"], k: int | tuple[int, ...] | None, axis: int, keepdims: bool
) -> Float[Array, "..."]:
    """One value a cutoff back on the list's axis, which goes unless asked for: by a tuple `k`, or by `keepdims`."""
    if isinstance(k, tuple) or keepdims:
        return jnp.moveaxis(values, -1, axis)
    return values.squeeze(-1)
