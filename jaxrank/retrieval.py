"""Top K of a large catalogue, and its NDCG: every item is scored, and no array of queries x items is ever held."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxrank import _arrays, metrics, ordering
from jaxrank._catalogue import Ids, Scores, search
from jaxrank._keywords import named_keywords
from jaxrank._typing import ArrayLike, Checked, Cutoffs, DiscountFn, GainFn
from jaxrank.discounts import log2_discount
from jaxrank.gains import exponential_gain


class Hits(NamedTuple):
    """What `retrieve_top_k` returns: `values` and `indices`, `[b, k]`."""

    values: Scores
    indices: Ids


@named_keywords
def retrieve_top_k(
    queries: ArrayLike,
    items: ArrayLike,
    *,
    k: Checked,
    exclude: ArrayLike = None,
    where: ArrayLike = None,
    chunk_size: Checked = None,
    axis_name: Checked = None,
) -> Hits:
    """The k items of largest inner product with each query, exactly, in descending order.

    `values, indices = top_k(queries @ items.T, k)`, in memory that grows with neither side's product. Equal scores go
    by item index. Values and order are the same on any chunking and sharding of the items.

    Args:
      queries: `[b, d]`, any real dtype. float32 is multiplied in full float32 also where a platform's default is less;
        bfloat16 and float16 are multiplied as they are and summed in float32, which is what fast hardware is made for.
      items: `[m, d]`.
      k: how many, an int. Beyond what can be retrieved, values are -inf and indices -1.
      exclude: `[b, e]`, indices of items that are not retrieved for a query, such as those seen; padded with -1.
      where: `[m]`, false for rows of `items` that are padding; whatever they hold, they are not retrieved.
      chunk_size: items scored at a time; None for as many as keep the product in cache.
      axis_name: inside `shard_map`, the mesh axis over which the rows of `items` are sharded, in equal parts. Every
        device finds its own k, and one gather of these follows. Indices, and those in `exclude`, are global.

    Returns:
      `values` `[b, k]`, float32 (float64 if an input is 64 bits wide), and `indices` `[b, k]`, int32. A query with a
      NaN or an infinite coordinate, or so large that scores may overflow, has NaN for values and -1 for indices; such
      an item, wherever it would rank, does so to every query. Values are differentiable by queries and items.

    Raises:
      ValueError: if shapes do not fit, or `k` or `chunk_size` is below 1.
      TypeError: if `k` or `chunk_size` is not an int, or an input does not hold real numbers.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxrank
      >>> items = jnp.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
      >>> jaxrank.retrieve_top_k(jnp.array([[1.0, 0.5]]), items, k=2, exclude=jnp.array([[2, -1]]))
      Hits(values=Array([[1. , 0.5]], dtype=float32), indices=Array([[0, 1]], dtype=int32))

      Items over devices::

        search = partial(jaxrank.retrieve_top_k, k=10, axis_name="items")
        jax.shard_map(search, mesh=mesh, in_specs=(P(), P("items")), out_specs=P())(queries, items)
    """
    return _retrieve(
        _arrays.as_array("queries", queries),
        _arrays.as_array("items", items),
        _arrays.as_optional("exclude", exclude),
        _arrays.as_mask(where),
        _check_size("k", k),
        None if chunk_size is None else _check_size("chunk_size", chunk_size),
        axis_name,
    )


@named_keywords
def retrieval_ndcg_at_k(
    queries: ArrayLike,
    items: ArrayLike,
    relevant: ArrayLike,
    k: Cutoffs,
    *,
    labels: ArrayLike = None,
    exclude: ArrayLike = None,
    where: ArrayLike = None,
    gain_fn: GainFn = exponential_gain,
    discount_fn: DiscountFn = log2_discount,
    empty: ArrayLike = 0.0,
    chunk_size: Checked = None,
    axis_name: Checked = None,
) -> Float[Array, "..."]:
    """NDCG@k of each query over the full catalogue: `ndcg_at_k(queries @ items.T, labels of all items, k)`.

    The k retrieved items are matched against the relevant ones; neither scores nor labels are ever held for all items.
    Tied scores go by item index (`ties="stable"`).

    Args:
      queries: `[b, d]`, as in `retrieve_top_k`.
      items: `[m, d]`.
      relevant: `[b, r]`, indices of the items relevant to a query, padded with -1. One given twice counts once, as
        first given. Those that are excluded, or not in the catalogue, are missed and stay in the ideal.
      k: cutoff, an int, or a tuple of ints, which costs one retrieval for all of them.
      labels: `[b, r]`, the relevance grades of `relevant`; None for 1. All other items have grade 0.
      exclude: `[b, e]`, indices of items not to retrieve, padded with -1.
      where: `[m]`, false for rows of `items` that are padding.
      gain_fn: label -> gain.
      discount_fn: 1-based rank -> discount.
      empty: the value of a query without a relevant item.
      chunk_size: items scored at a time.
      axis_name: the mesh axis over which the rows of `items` are sharded; `relevant` and `exclude` hold global indices.

    Returns:
      `[b]`, or `[b, cutoffs]` for a tuple `k`, as `ndcg_at_k`. NaN where `retrieve_top_k` gives NaN, or for a NaN among
      a query's labels.

    Raises:
      ValueError, TypeError: as `retrieve_top_k` and `ndcg_at_k`.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxrank
      >>> items = jnp.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
      >>> jaxrank.retrieval_ndcg_at_k(jnp.array([[1.0, 0.5]]), items, jnp.array([[0, 2, -1]]), 2)
      Array([1.], dtype=float32)

    References:
      Krichene and Rendle (2020), On sampled metrics for item recommendation: why the catalogue must be whole.
    """
    cutoffs = _arrays.check_cutoffs(k)
    if cutoffs is None:
        raise TypeError("k must be an int or a tuple of ints; got None, which would retrieve the whole catalogue.")
    depth = max(cutoffs) if isinstance(cutoffs, tuple) else cutoffs
    hits = retrieve_top_k(
        queries, items, k=depth, exclude=exclude, where=where, chunk_size=chunk_size, axis_name=axis_name
    )
    relevant, labels = _arrays.as_array("relevant", relevant), _arrays.as_optional("labels", labels)
    ranked, ideal = _labelled(hits, relevant, labels)
    return metrics.ranked_ndcg_at_k(
        ranked,
        cutoffs,
        where=~jnp.isneginf(hits.values),  # what was not retrieved takes no rank
        gain_fn=gain_fn,
        discount_fn=discount_fn,
        empty=empty,
        ideal_labels=ideal,
    )


@partial(jax.jit, inline=True)
def _labelled(hits: Hits, relevant: Array, labels: Array | None) -> tuple[Float[Array, "b k"], Float[Array, "b n"]]:
    """The labels of the retrieved items, in their order, and those of all items as far as the ideal may need them."""
    values, indices = hits
    _check_relevant(indices, relevant, labels)
    dtype = values.dtype if labels is None else _arrays.result_dtype(values, labels)
    labels = jnp.ones_like(relevant, dtype) if labels is None else labels.astype(dtype)
    first = _first_of_each(relevant)
    labels = jnp.where(first, labels, jnp.zeros_like(labels))
    match = (indices[:, :, None] == relevant[:, None, :]) & first[:, None, :]
    ranked = jnp.where(match, labels[:, None, :], jnp.zeros_like(labels[:, None, :])).sum(axis=-1)
    ranked = metrics.poison(ranked, jnp.isnan(values).any(axis=-1, keepdims=True))
    return ranked, jnp.concatenate([labels, jnp.zeros_like(ranked)], axis=-1)


def _check_relevant(indices: Array, relevant: Array, labels: Array | None) -> None:
    if not jnp.issubdtype(relevant.dtype, jnp.integer):
        raise TypeError(f"relevant must hold item indices, integers; got dtype {relevant.dtype}.")
    if relevant.ndim != 2 or len(relevant) != len(indices):
        raise ValueError(
            f"relevant must be [b, r], a row for each of {len(indices)} queries, padded with -1; got {relevant.shape}."
        )
    if labels is not None:
        _arrays.check_real("labels", labels)
        if labels.shape != relevant.shape:
            raise ValueError(f"labels must have the shape of relevant, {relevant.shape}; got {labels.shape}.")


def _first_of_each(ids: Int[Array, "b r"]) -> Bool[Array, "b r"]:
    """Which ids are neither padding nor given before."""
    place = lax.iota(jnp.int32, ids.shape[1])
    before = (ids[:, None, :] == ids[:, :, None]) & (place[None, None, :] < place[None, :, None])
    return (ids >= 0) & ~before.any(axis=-1)


def _check_size(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int, known when the function is compiled; got {value!r}.")
    if value < 1:
        raise ValueError(f"{name} must be at least 1; got {value}.")
    return int(value)


@partial(jax.jit, static_argnums=(4, 5, 6), inline=True)
def _retrieve(queries, items, exclude, where, k, chunk_size, axis_name):
    _check_shapes(queries, items, exclude, where)
    exclude = jnp.full((queries.shape[0], 0), -1, jnp.int32) if exclude is None else exclude.astype(jnp.int32)
    where = None if where is None else where.astype(bool)
    if axis_name is None:
        return Hits(*_poisoned(*search(queries, items, exclude, where, k, chunk_size)))
    offset = lax.axis_index(axis_name) * items.shape[0]
    values, indices = search(queries, items, jnp.where(exclude < 0, -1, exclude - offset), where, k, chunk_size)
    return Hits(*_poisoned(*_gathered(values, jnp.where(indices < 0, -1, indices + offset), axis_name)))


def _check_shapes(queries: Array, items: Array, exclude: Array | None, where: Array | None) -> None:
    given = {"queries": queries, "items": items, "exclude": exclude, "where": where}
    shapes = ", ".join(f"{name} {array.shape}" for name, array in given.items() if array is not None)
    _arrays.check_real("queries", queries)
    _arrays.check_real("items", items)
    if queries.ndim != 2 or items.ndim != 2 or queries.shape[1] != items.shape[1]:
        raise ValueError(f"queries must be [b, d] and items [m, d], with one d; got {shapes}.")
    if exclude is not None and not jnp.issubdtype(exclude.dtype, jnp.integer):
        raise TypeError(f"exclude must hold item indices, integers; got dtype {exclude.dtype}.")
    if exclude is not None and (exclude.ndim != 2 or exclude.shape[0] != queries.shape[0]):
        raise ValueError(f"exclude must be [b, e], a row for each query, padded with -1; got {shapes}.")
    if where is not None and where.shape != items.shape[:1]:
        raise ValueError(f"where must be [m], one entry for each item; got {shapes}.")


def _poisoned(values: Scores, indices: Ids) -> tuple[Scores, Ids]:
    bad = jnp.isnan(values).any(axis=-1, keepdims=True)
    return metrics.poison(values, bad), jnp.where(bad, -1, indices)


def _gathered(values: Scores, indices: Ids, axis_name: Checked) -> tuple[Scores, Ids]:
    """The best of all shards. Their items follow one another, so that position stands for index among equal scores."""
    older = getattr(lax, "all_gather_invariant", None)
    gather = older or partial(lax.all_gather, to="invarying")
    values, indices = gather((values, indices), axis_name, axis=1, tiled=True)
    values, places = ordering.top_k(values, values.shape[1] // lax.axis_size(axis_name))
    return values, ordering.take(indices, places)
