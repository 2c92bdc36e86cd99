"""Batches on a mesh whose axes are Explicit: inside, XLA splits the work by list, as it does on Auto axes."""

import functools
import inspect
from collections.abc import Callable
from typing import TypeVar, cast

import jax
from jax.sharding import NamedSharding, PartitionSpec

Function = TypeVar("Function", bound=Callable)
LISTS = "scores", "labels", "where"


def split_by_list(function: Function, own_axes: int | None = None) -> Function:
    """`function(scores, labels, ..., k, axis, keepdims)` on Auto axes; its values are split as its lists were.

    Explicit types would have to be spelt out at every reshape, block of lists and branch, each for any batch axes.
    `own_axes` is how many axes a list's values have, behind those of the batch; None: as `k` and `keepdims` say.
    """
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def split(*args):
        given = dict(zip(names, args, strict=True))
        sharding = _of_values(given, own_axes)
        if sharding is None:
            return function(*args)
        arrays = {name: value for name, value in given.items() if isinstance(value, jax.Array)}
        automatic = jax.sharding.auto_axes(lambda some: function(*(given | some).values()), out_sharding=sharding)
        return automatic(arrays)

    return cast(Function, split)


def _of_values(given: dict, own_axes: int | None) -> NamedSharding | None:
    """How the values are split over devices, one for each list; None where nothing is, in the types."""
    axis = given.get("axis", -1)
    if jax.sharding.get_abstract_mesh().empty or not isinstance(axis, int):
        return None
    arrays = [given[name] for name in LISTS if isinstance(given.get(name), jax.Array)]
    shardings = [jax.typeof(array).sharding for array in arrays]
    split = [s for s in shardings if any(isinstance(names, (str, tuple)) and names for names in s.spec)]
    if not split:
        return None
    batch = _batch_names(arrays, axis)
    if own_axes is not None:
        batch += [None] * own_axes
    elif isinstance(given["k"], tuple) or given.get("keepdims"):
        batch.insert(axis % (len(batch) + 1), None)
    return NamedSharding(split[0].mesh, PartitionSpec(*batch))


def _batch_names(arrays: list, axis: int) -> list:
    """The mesh axes of each batch axis; these broadcast from the right."""
    every = []
    for array in arrays:
        names = list(jax.typeof(array).sharding.spec) + [None] * array.ndim
        names = names[: array.ndim]
        del names[axis]
        every.append(names[::-1])
    longest = max(map(len, every))
    found = [next((names[i] for names in every if i < len(names) and names[i]), None) for i in range(longest)]
    return found[::-1]
