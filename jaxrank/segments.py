"""The metric on flat lists: rows in any order, each with the id of its list. No padding, whatever the lengths."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jaxtyping import Array, Float, Int32, Shaped

from jaxrank import _arrays, _segment_bands, metrics, ordering, relaxations, surrogates
from jaxrank import _segments as flat
from jaxrank._gaps import positive
from jaxrank._keywords import named_keywords
from jaxrank._typing import ArrayLike, Checked, Cutoffs, DiscountFn, GainFn
from jaxrank.discounts import log2_discount
from jaxrank.gains import exponential_gain
from jaxrank.relaxations import neural_sort, soft_sort


class DenseSegments(NamedTuple):
    """What `dense_segments` returns."""

    segment_ids: Int32[np.ndarray, " rows"]
    num_segments: int
    ids: Shaped[np.ndarray, " segments"]


def dense_segments(query_ids: ArrayLike) -> DenseSegments:
    """Any query ids as the integers 0, 1, 2, ... that `segment_ndcg_at_k` takes.

    Args:
      query_ids: `[rows]`, numbers or strings, in any order; NumPy, JAX, or a table's column.

    Returns:
      `segment_ids`, `[rows]`, int32; `num_segments`, how many there are; and `ids`, `[num_segments]`, the query id of
      each, ascending: `dict(zip(ids, values))` names the values.

    Raises:
      ValueError: if an id is missing (None or NaN), or the ids are not one-dimensional.
      TypeError: if the ids are traced: how many there are decides shapes. Call it outside `jax.jit`.

    Example:
      >>> import jaxrank
      >>> segments = jaxrank.dense_segments(["q7", "q30", "q7"])
      >>> segments.segment_ids.tolist(), segments.num_segments, segments.ids.tolist()
      ([1, 0, 1], 2, ['q30', 'q7'])
    """
    if isinstance(query_ids, core.Tracer):
        raise TypeError(
            "dense_segments needs the ids themselves, but they are traced; call it outside jax.jit, or use "
            "jnp.unique(ids, return_inverse=True, size=num_segments)."
        )
    given = np.asarray(query_ids)
    if given.ndim != 1:
        raise ValueError(f"query ids must be one-dimensional, one a row; got shape {given.shape}.")
    _check_none_missing(given)
    ids, inverse = np.unique(given, return_inverse=True)
    return DenseSegments(inverse.astype(np.int32), len(ids), ids)


def _check_none_missing(ids: np.ndarray) -> None:
    if ids.dtype.kind in "fO":
        missing = np.array([value is None or value != value for value in ids.tolist()], bool)
        if missing.any():
            row = int(np.argmax(missing))
            raise ValueError(f"the query id of row {row} is missing ({ids[row]}): each row needs one.")


@named_keywords
def segment_ndcg_at_k(
    scores: ArrayLike,
    labels: ArrayLike,
    segment_ids: ArrayLike,
    *,
    num_segments: Checked,
    k: Cutoffs = None,
    where: ArrayLike = None,
    gain_fn: GainFn = exponential_gain,
    discount_fn: DiscountFn = log2_discount,
    ties: str = "average",
    empty: ArrayLike = 0.0,
) -> Float[Array, "..."]:
    """`ndcg_at_k` of lists that are given as rows, each with the id of its list.

    `NDCG@k = DCG@k / ideal DCG@k`, list by list what `ndcg_at_k` gives of them, in O(rows log rows) time and O(rows)
    memory whatever their lengths.

    Args:
      scores: `[rows]`, any real dtype, as in `ndcg_at_k`. Items that were judged but not retrieved are rows of score
        -inf.
      labels: `[rows]`, relevance grades.
      segment_ids: `[rows]`, integers: the list of each row, in any order. Rows of an id below 0 or not below
        `num_segments` are dropped, as by `jax.ops.segment_sum`. `dense_segments` turns any ids into these.
      num_segments: how many lists, an int, static.
      k: cutoff, an int; None for the whole list; or a tuple of ints.
      where: `[rows]`, true for real rows; another reaches neither value nor gradient.
      gain_fn: label -> gain.
      discount_fn: 1-based rank -> discount.
      ties: "average", "stable" (the order of the rows), "best" or "worst".
      empty: the value of a list without a relevant item, or without a row.

    Returns:
      One value a list, `[num_segments]`; with a tuple `k`, `[num_segments, cutoffs]`. A list with a NaN is NaN.

    Raises:
      ValueError: if the arrays are not one-dimensional of one length, or an option has no such value.
      TypeError: if `k` or `num_segments` is traced or not an int, or `segment_ids` are not integers.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxrank
      >>> scores, labels = jnp.array([0.2, 0.5, 0.9, 0.5, 0.1]), jnp.array([1, 1, 2, 2, 0])
      >>> jaxrank.segment_ndcg_at_k(scores, labels, jnp.array([0, 1, 0, 1, 0]), num_segments=2, k=2)
      Array([1.        , 0.898...], dtype=float32)

    References:
      As `ndcg_at_k`.
    """
    metrics.check_functions(gain_fn, discount_fn)
    _arrays.check_option("ties", ties, metrics.TIE_RULES)
    return _segment_ndcg(
        *_check(scores, labels, segment_ids, where),
        _arrays.check_number("empty", empty),
        flat.check_num_segments(num_segments),
        _arrays.check_cutoffs(k),
        gain_fn,
        discount_fn,
        ties,
    )


def _check(scores: ArrayLike, labels: ArrayLike, segment_ids: ArrayLike, where: ArrayLike) -> tuple:
    arrays = _arrays.as_array("scores", scores), _arrays.as_array("labels", labels)
    return *arrays, flat.as_segment_ids(segment_ids), _arrays.as_mask(where)


@partial(jax.jit, static_argnums=range(5, 10), inline=True)
def _segment_ndcg(scores, labels, segment_ids, where, empty, num_segments, k, gain_fn, discount_fn, ties):
    rows = flat.as_rows(scores, labels, segment_ids, where, num_segments)
    keys = _arrays.wide(ordering.rank_keys(rows.scores, rows.segments < num_segments))
    ranked = flat.ranked_rows(rows, keys, gain_fn, jnp.isnan(keys), num_segments, ties)
    depth = _arrays.depth(k, keys.shape[0])
    gains, best = flat.hard_gains(ranked, depth, ties), flat.best_gains(ranked, depth)
    dcg, ideal = (flat.discounted(ranked, some, discount_fn, k, num_segments) for some in (gains, best))
    dcg = metrics.at_most(ideal, dcg, perfect=flat.all_equal(ranked, gains, best, k, num_segments))
    return _values(dcg, ideal, empty, ranked.bad, k)


@named_keywords
def segment_smooth_ndcg_at_k(
    scores: ArrayLike,
    labels: ArrayLike,
    segment_ids: ArrayLike,
    *,
    num_segments: Checked,
    k: Cutoffs,
    where: ArrayLike = None,
    temperature: ArrayLike = 1.0,
    relaxation: Checked = neural_sort,
    balance: Checked = 0,
    gain_fn: GainFn = exponential_gain,
    discount_fn: DiscountFn = log2_discount,
    empty: ArrayLike = 0.0,
) -> Float[Array, "..."]:
    """`smooth_ndcg_at_k` of lists that are given as rows, each with the id of its list.

    `NDCG@k = sum_{i=1..k} r_i discount(i) / ideal DCG@k` with `r = P gains`: list by list, `smooth_ndcg_at_k`.
    NeuralSort takes time in O(rows k), SoftSort in O(rows) beside the sort; both need memory in O(rows + lists k).

    Args:
      scores: `[rows]`, floating point. -inf: judged but not retrieved. NaN or +inf makes its list's value NaN.
      labels: `[rows]`, relevance grades.
      segment_ids: `[rows]`, integers, as in `segment_ndcg_at_k`.
      num_segments: how many lists, an int, static.
      k: cutoff, an int, or a tuple of ints. It is not left out, since time grows with it.
      where: `[rows]`, true for real rows; another reaches neither value nor gradient.
      temperature: positive; a scalar, or one for each list, `[num_segments]`. It is traced.
      relaxation: `neural_sort` or `soft_sort`.
      balance: sweeps that cap the relaxed order's column sums at 1, as in `smooth_ndcg_at_k`.
      gain_fn: label -> gain.
      discount_fn: 1-based rank -> discount.
      empty: the value of a list without a relevant item, which has gradient 0.

    Returns:
      One value a list, `[num_segments]`; with a tuple `k`, `[num_segments, cutoffs]`.

    Raises:
      ValueError, TypeError: as `segment_ndcg_at_k` and `smooth_ndcg_at_k`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import jaxrank
      >>> scores, labels = jnp.array([0.3, -0.1, 0.7, 0.2]), jnp.array([1, 0, 2, 3])
      >>> def loss(scores):
      ...     values = jaxrank.segment_smooth_ndcg_at_k(scores, labels, jnp.array([0, 1, 1, 0]), num_segments=2, k=2)
      ...     return 1 - values.mean()
      >>> jax.jit(jax.value_and_grad(loss))(scores)
      (Array(0.133..., dtype=float32), Array([ 0.036...,  0.039..., -0.039..., -0.036...], dtype=float32))

    References:
      As `smooth_ndcg_at_k`.
    """
    if k is None:
        raise ValueError("k must be given on flat lists, as time grows with it: an int, or a tuple of ints.")
    if relaxation not in _BANDS:
        raise ValueError(f"relaxation must be neural_sort or soft_sort on flat lists; got {relaxation!r}.")
    scores, labels, where, temperature = surrogates.check_inputs(
        scores, labels, where, temperature, gain_fn, discount_fn
    )
    return _segment_smooth_ndcg(
        *(scores, labels, flat.as_segment_ids(segment_ids), where, temperature),
        _arrays.check_number("empty", empty),
        flat.check_num_segments(num_segments),
        _arrays.check_cutoffs(k),
        relaxation,
        surrogates.check_balance(balance),
        gain_fn,
        discount_fn,
    )


_BANDS = {neural_sort: _segment_bands.neural_band, soft_sort: _segment_bands.soft_band}


@partial(jax.jit, static_argnums=range(6, 12), inline=True)
def _segment_smooth_ndcg(
    scores, labels, segment_ids, where, temperature, empty, num_segments, k, relaxation, balance, gain_fn, discount_fn
):
    rows = flat.as_rows(scores, labels, segment_ids, where, num_segments)
    temperature = _list_temperature(temperature, rows.labels, num_segments)
    keys = ordering.rank_keys(scores.astype(rows.labels.dtype), rows.segments < num_segments)
    ranked = flat.ranked_rows(rows, keys, gain_fn, ~(keys < jnp.inf), num_segments)
    live = ranked.keys > -jnp.inf
    gains = ordering.valid_gains(ranked.labels, live, ranked.weigh.gain)
    # Recurrences run on from list to list, where an infinite gain would become NaN everywhere.
    endless = flat.lists_with(~jnp.isfinite(gains), ranked.segments, num_segments)
    gains = _arrays.masked(gains, ~flat.of_list(endless, ranked.segments, False), 0.0)
    ordered = jnp.where(live, scores.astype(gains.dtype)[ranked.order], 0)
    gaps = _segment_bands.flat_gaps(ordered, live, ranked.segments, ranked.ranks, temperature)
    band = _BANDS[relaxation](gaps, _arrays.depth(k, keys.shape[0]))
    dcg = metrics.discounted(relaxations.weighed(band, gains, live, balance), discount_fn, k)
    ideal = flat.discounted(
        ranked, flat.best_gains(ranked, _arrays.depth(k, keys.shape[0])), discount_fn, k, num_segments
    )
    if balance:
        dcg = dcg - jax.lax.stop_gradient(jnp.maximum(dcg - ideal, 0))  # rounding must not take a ratio above 1
    return _values(dcg, ideal, empty, ranked.bad | endless | jnp.isnan(positive(temperature[:, None])[:, 0]), k)


def _list_temperature(temperature: Array, like: Array, num_segments: int) -> Float[Array, " segments"]:
    temperature = jnp.asarray(temperature, like.dtype)
    if temperature.shape not in ((), (num_segments,)):
        raise ValueError(
            f"temperature must be a scalar or one for each list, ({num_segments},); got shape {temperature.shape}."
        )
    return jnp.broadcast_to(temperature, (num_segments,))


def _values(dcg: flat.Sums, ideal: flat.Sums, empty: Array, bad: Array, k: Checked) -> Float[Array, "..."]:
    # The NaN of a list without a value must not reach the division, whose gradient would carry it to the other lists.
    bad = bad[:, None]
    values = _arrays.safe_divide(jnp.where(bad, 0, dcg), jnp.where(bad, 1, ideal), jnp.asarray(empty))
    return _arrays.restore_axis(metrics.poison(values, bad), k, -1, False)
