"""What each input means: the rows of the README's table, one test (or table of tests) each."""

import fractions
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrank

LOG3 = 1 / math.log2(3)


def ndcg(scores, labels, *args, **kwargs):
    return np.asarray(jaxrank.ndcg_at_k(jnp.asarray(scores), jnp.asarray(labels), *args, **kwargs))


# ---------------------------------------------------------------------------------------------------------- tied scores


@pytest.mark.parametrize(
    ("ties", "expected"),
    [("average", 1 / 3), ("stable", 0.0), ("best", 1 / (1 + LOG3)), ("worst", 0.0)],
)
def test_tie_that_straddles_the_cutoff(ties, expected):
    np.testing.assert_allclose(ndcg([1.0, 1, 1, 0], [0, 0, 1, 1], 2, ties=ties), expected, rtol=5e-7)


@pytest.mark.parametrize("zeros", [[-0.0, 0.0], [0.0, -0.0]])
@pytest.mark.parametrize(("ties", "expected"), [("average", 0.5), ("stable", 0.0), ("best", 1.0), ("worst", 0.0)])
def test_negative_zero_equals_zero(zeros, ties, expected):
    assert ndcg(np.float32(zeros), [0, 1], 1, ties=ties) == expected


@pytest.mark.parametrize("n", [3, 50, 700])
@pytest.mark.parametrize("k", [1, 10, 100, None])
def test_ties_average_over_random_orders_at_any_depth(n, k):
    rng = np.random.default_rng(n)
    scores, labels = rng.integers(0, max(n // 8, 2), n), rng.integers(0, 4, n)
    depth = n if k is None else min(k, n)
    discounts = 1 / np.log2(np.arange(2, n + 2))
    discounts[depth:] = 0
    dcg, rank = 0.0, 0
    for value in sorted(set(scores.tolist()), reverse=True):
        members = labels[scores == value]
        dcg += (2.0**members - 1).mean() * discounts[rank : rank + len(members)].sum()
        rank += len(members)
    ideal = ((2.0 ** np.sort(labels)[::-1] - 1) * discounts).sum()
    np.testing.assert_allclose(ndcg(np.float32(scores), labels, k), dcg / ideal, rtol=2e-6)


# ------------------------------------------------------------------------------------------------- nothing to be ranked


@pytest.mark.parametrize("empty", [0.0, 1.0, 0.5, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    ("scores", "labels", "where"),
    [
        ([3.0, 2, 1], [0, 0, 0], None),
        ([3.0, 2, 1], [-1, 0, -5], None),
        ([], [], None),
        ([3.0, 2, 1], [1, 2, 3], [False] * 3),
    ],
    ids=["none relevant", "negative", "empty list", "all masked"],
)
def test_empty_policy(scores, labels, where, empty):
    where = None if where is None else np.array(where)
    value = ndcg(np.float32(scores), np.float32(labels), 2, where=where, empty=empty)
    np.testing.assert_array_equal(value, np.float32(empty))


def test_batches_without_lists():
    assert ndcg(np.zeros((0, 5)), np.zeros((0, 5)), (1, 3)).shape == (0, 2)


# -------------------------------------------------------------------------------------------------------- masked slots


@pytest.mark.parametrize("ties", ["average", "stable", "best", "worst"])
@pytest.mark.parametrize("gain_fn", [jaxrank.exponential_gain, jaxrank.linear_gain, lambda labels: labels**2 + 1])
def test_masked_slots_reach_neither_value_nor_gradient(ties, gain_fn):
    @jax.jit
    def value_and_gradients(scores, labels, where):
        value = lambda s, y: jaxrank.ndcg_at_k(s, y, 3, where=where, gain_fn=gain_fn, ties=ties)
        return jax.value_and_grad(value, (0, 1))(scores, labels)

    valid, where = slice(1, -1), np.array([False, True, True, True, True, False])
    scores, labels = np.float32([0, 3, 2, 2, 1, 0]), np.float32([0, 0, 2, 1, 0, 0])
    short = value_and_gradients(scores[valid], labels[valid], where[valid])
    for junk in (math.nan, math.inf, -math.inf, 1e30, 0.0):
        scores[~where] = labels[~where] = junk
        value, (by_scores, by_labels) = value_and_gradients(scores, labels, where)
        np.testing.assert_allclose(value, short[0], rtol=1e-6)
        np.testing.assert_allclose(by_labels[valid], short[1][1], atol=1e-6)
        np.testing.assert_array_equal(by_labels[~where], 0)
        np.testing.assert_array_equal(by_scores, 0)


@pytest.mark.parametrize("dtype", [bool, np.int32, np.uint8, np.float32])
def test_where_of_numbers_is_a_mask(dtype):
    where = np.array([0, 1, 1], dtype) if dtype is bool else np.array([0, 1, 2], dtype)
    assert ndcg([3.0, 2, 1], [3, 0, 1], 1, where=where) == 0.0


# --------------------------------------------------------------------------------------------------------- not a number


@pytest.mark.parametrize("sign", [1, -1])  # x86 makes NaN with the sign set, and `top_k` puts that one last
@pytest.mark.parametrize("n", [3, 40, 3000])
@pytest.mark.parametrize("what", ["scores", "labels"])
def test_nan_in_a_valid_slot_poisons_its_list_alone(sign, n, what):
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(3, n)).astype(np.float32), rng.integers(0, 4, (3, n)).astype(np.float32)
    good = ndcg(scores, labels, 2)
    {"scores": scores, "labels": labels}[what][1, n // 2] = np.copysign(np.float32(np.nan), sign)
    np.testing.assert_array_equal(ndcg(scores, labels, 2), [good[0], np.nan, good[2]])
    assert np.isnan(jaxrank.dcg_at_k(scores, labels, 2)[1])
    assert np.isnan(jaxrank.ideal_dcg_at_k(labels, 2)[1]) == (what == "labels")


def test_nan_wins_over_empty():
    assert np.isnan(ndcg([np.nan, 1.0], [0, 0], 1))


def test_not_retrieved_items_have_no_rank_but_count_in_the_ideal():
    # Ideal: 7, 1; ranked: 0, 1, and the relevant item that was not retrieved takes no rank.
    np.testing.assert_allclose(ndcg([-np.inf, 2, 1], [3.0, 0, 1]), (1 * LOG3) / (7 + LOG3), rtol=5e-7)
    assert ndcg([-np.inf, -np.inf], [3.0, 1]) == 0.0
    # k = 2 has room for it, and still it is not ranked.
    assert ndcg([-np.inf, 1.0], [3.0, 0], 2) == 0.0


def test_infinite_scores_tie_among_themselves():
    assert ndcg([np.inf, np.inf, 3], [0.0, 1, 1], 1) == 0.5


def test_infinite_label_is_no_number():
    assert np.isnan(ndcg([1.0, 2], [np.inf, 1]))


# --------------------------------------------------------------------------------------------------------------- labels


def test_negative_labels_are_not_relevant():
    assert ndcg([3.0, 2, 1], [-1, 2, 1]) == ndcg([3.0, 2, 1], [0, 2, 1])


@pytest.mark.parametrize("grade", [31, 60, 61, 64, 100, 127, 128, 129, 1000, 1500])
def test_large_grades(grade):
    expected = fractions.Fraction(2**grade - 1) * fractions.Fraction(LOG3) + fractions.Fraction(0.5)
    expected /= (2**grade - 1) + fractions.Fraction(LOG3)
    np.testing.assert_allclose(ndcg([2.0, 1, 0], [0, grade, 1]), float(expected), rtol=5e-7)


@pytest.mark.parametrize("scale", [2.0**-120, 2.0**-60, 1.0, 2.0**100, 2.0**126])
def test_linear_gain_at_any_scale(scale):
    labels = np.float32([0.5, 1.0, 1.5, 0.25, 1.0])
    scores = np.float32([1, 2, 3, 4, 4])
    value = ndcg(scores, labels, 4, gain_fn=jaxrank.linear_gain)
    assert ndcg(scores, labels * np.float32(scale), 4, gain_fn=jaxrank.linear_gain) == value


def test_dcg_saturates():
    largest = np.finfo(np.float32).max
    assert jaxrank.dcg_at_k(jnp.array([1.0, 0]), jnp.array([1500, 1])) == largest
    assert jaxrank.ideal_dcg_at_k(jnp.array([1500, 1])) == largest
    np.testing.assert_allclose(jaxrank.ideal_dcg_at_k(jnp.array([100.0, 1])), 2.0**100, rtol=5e-7)


# --------------------------------------------------------------------------------------------------------------- dtypes

DTYPES = [
    *(jnp.bool_, jnp.int8, jnp.uint8, jnp.int16, jnp.uint16, jnp.int32, jnp.uint32),
    *(jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float16, jnp.bfloat16, jnp.float32),
]


@pytest.mark.parametrize(("scores_dtype", "labels_dtype"), [*zip(DTYPES, DTYPES), *zip(DTYPES, DTYPES[::-1])])
def test_any_real_dtype(scores_dtype, labels_dtype):
    scores, labels = np.array([[1, 0, 1, 0]]), np.array([[0, 1, 1, 0]])
    value = jaxrank.ndcg_at_k(jnp.asarray(scores, scores_dtype), jnp.asarray(labels, labels_dtype), 3)
    assert value.dtype == jnp.float32
    np.testing.assert_array_equal(value, ndcg(np.float32(scores), np.float32(labels), 3))
    where = np.array([[True, False, True, True]])
    masked = jaxrank.ndcg_at_k(jnp.asarray(scores, scores_dtype), jnp.asarray(labels, labels_dtype), 3, where=where)
    np.testing.assert_array_equal(masked, ndcg(np.float32(scores), np.float32(labels), 3, where=where))


@pytest.mark.parametrize("ties", ["average", "best", "worst"])
@pytest.mark.parametrize("scale", [0.5, 4, 30])  # of groups with hundreds, tens and a few at the cutoff
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8, jnp.float32])
def test_tied_lists_together_are_as_each_alone(ties, scale, dtype):
    rng = np.random.default_rng(0)
    scores = jnp.asarray(np.clip(np.round(scale * rng.normal(size=(260, 300))), -127, 127), dtype)
    labels = jnp.asarray(rng.integers(0, 5, (260, 300)), jnp.float32)
    metric = jax.jit(partial(jaxrank.ndcg_at_k, k=10, ties=ties))
    together, alone = metric(scores, labels), jax.lax.map(lambda pair: metric(*pair), (scores, labels))
    np.testing.assert_allclose(together, alone, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (np.int8, [-128, 127, 0]),
        (np.uint8, [255, 0, 128]),
        (np.int16, [-32768, 32767, -1]),
        (np.int32, [2**31 - 1, 2**31 - 2, -(2**31)]),
        (np.int32, [-(2**31), -(2**31) + 1, 0]),
        (np.int32, [2**24 + 1, 2**24, 2**24 + 2]),
        (np.uint32, [2**32 - 1, 2**32 - 2, 0]),
    ],
)
@pytest.mark.parametrize("mask", [False, True])
def test_integers_keep_their_exact_order(dtype, values, mask):
    scores = np.array(values, dtype)
    labels = np.argsort(np.argsort(np.array(values, object)))  # the best score has the best label
    where = np.ones(3, bool) if mask else None
    assert ndcg(scores, labels, where=where) == 1.0
    assert ndcg(scores, labels, 1, where=where) == 1.0


def test_gradients_come_back_in_the_dtype_of_the_input():
    def value(scores, labels):
        return jaxrank.ndcg_at_k(scores, labels, 2)

    by_scores, by_labels = jax.grad(value, (0, 1))(jnp.ones(3, jnp.bfloat16), jnp.arange(3, dtype=jnp.float16))
    assert (by_scores.dtype, by_labels.dtype) == (jnp.bfloat16, jnp.float16)


@pytest.mark.parametrize("double", ["scores", "labels"])
def test_float64_if_any_input_is(double, x64):
    arrays = {"scores": np.float32([1, 2]), "labels": np.float32([1, 0])}
    arrays[double] = arrays[double].astype(np.float64)
    assert ndcg(arrays["scores"], arrays["labels"]).dtype == np.float64


def test_low_precision_is_accumulated_in_float32():
    n = 4096  # in bfloat16 a sum of ones stops at 256
    labels = jnp.ones(n, jnp.bfloat16)
    expected = (1 / np.log2(np.arange(2, n + 2))).sum()
    np.testing.assert_allclose(jaxrank.dcg_at_k(jnp.zeros(n, jnp.bfloat16), labels), expected, rtol=1e-6)


def test_long_lists_keep_their_digits():
    n = 1_000_000
    rng = np.random.default_rng(1)
    scores, labels = rng.permutation(n).astype(np.float32), rng.integers(0, 5, n).astype(np.float32)
    discounts = 1 / np.log2(np.arange(2, n + 2))
    gains = 2.0**labels - 1
    expected = (gains[np.argsort(-scores)] @ discounts) / (np.sort(gains)[::-1] @ discounts)
    np.testing.assert_allclose(ndcg(scores, labels), expected, rtol=1e-6)


# -------------------------------------------------------------------------------------------------------------- cutoffs


def test_cutoff_beyond_the_list_is_the_whole_list():
    scores, labels = [3.0, 1, 2], [0, 1, 2]
    assert ndcg(scores, labels, 10) == ndcg(scores, labels, 3) == ndcg(scores, labels)


@pytest.mark.parametrize("k", [0, -1, (), (1, 0)])
def test_cutoffs_below_one(k):
    with pytest.raises(ValueError, match=r"\bk\b"):
        ndcg([1.0], [1], k)


@pytest.mark.parametrize("k", [True, 2.0, "3", [1, 2], (1, 2.5), (True,), np.array([1, 2])])
def test_cutoffs_that_are_no_ints(k):
    with pytest.raises(TypeError, match=r"\bk\b"):
        ndcg([1.0], [1], k)


def test_traced_cutoff():
    with pytest.raises(TypeError, match=r"\bk\b.*static"):
        jax.jit(lambda k: jaxrank.ndcg_at_k(jnp.ones(3), jnp.ones(3), k))(2)


@pytest.mark.parametrize("k", [np.int32(2), np.int64(2), np.array(2)])
def test_numpy_integers_are_cutoffs(k):
    assert ndcg([1.0, 2, 3], [2, 1, 0], k) == ndcg([1.0, 2, 3], [2, 1, 0], 2)


@pytest.mark.parametrize("axis", [-1, -2, 0, 1])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("k", [2, (7, 2, 2)])
def test_axis_and_keepdims(axis, keepdims, k):
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(4, 5)).astype(np.float32), rng.integers(0, 3, (4, 5))
    value = ndcg(scores, labels, k, axis=axis, keepdims=keepdims)
    rows = (scores, labels) if axis in (-1, 1) else (scores.T, labels.T)
    each = np.stack([[ndcg(s, y, c) for c in (k if isinstance(k, tuple) else [k])] for s, y in zip(*rows, strict=True)])
    if not isinstance(k, tuple) and not keepdims:
        each = each[:, 0]
    elif axis in (-2, 0):
        each = each.T
    assert value.shape == each.shape
    np.testing.assert_allclose(value, each, rtol=1e-6)


# ------------------------------------------------------------------------------------------------------ shapes that fit


def test_batch_axes_broadcast():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(3, 2, 6)).astype(np.float32)
    labels, where = rng.integers(0, 3, 6), rng.random((2, 6)) < 0.7
    value = ndcg(scores, labels, 3, where=where)
    assert value.shape == (3, 2)
    for i in range(3):
        for j in range(2):
            np.testing.assert_allclose(value[i, j], ndcg(scores[i, j], labels, 3, where=where[j]), rtol=1e-6)


def test_one_scoring_of_many_label_sets():
    rng = np.random.default_rng(0)
    scores, labels = np.float32([1, 1, 2, 3, 3]), rng.integers(0, 3, (4, 5))
    for ties in ("average", "stable", "best", "worst"):
        value = ndcg(scores, labels, 3, ties=ties)
        np.testing.assert_allclose(value, [ndcg(scores, y, 3, ties=ties) for y in labels], rtol=1e-6)


@pytest.mark.parametrize(
    ("scores", "labels", "where"),
    [((3,), (4,), None), ((2, 3), (2, 3), (2, 4)), ((2, 3), (3, 3), None), ((), (), None), ((2, 3), (3, 2), None)],
)
def test_shapes_that_do_not_fit(scores, labels, where):
    where = None if where is None else np.ones(where, bool)
    with pytest.raises(ValueError) as error:
        jaxrank.ndcg_at_k(np.ones(scores, np.float32), np.ones(labels, np.float32), where=where)
    assert str(scores) in str(error.value) and str(labels) in str(error.value)


@pytest.mark.parametrize("bad", [None, "scores", ["a"], [1j], [[1, 2], [3]], {"a": 1}])
@pytest.mark.parametrize("name", ["scores", "labels"])
def test_inputs_that_are_no_numbers(bad, name):
    arguments = {"scores": np.ones(1), "labels": np.ones(1)} | {name: bad}
    with pytest.raises(TypeError, match=name):
        jaxrank.ndcg_at_k(**arguments)


def test_lists_numpy_and_tables_are_arrays():
    pandas = pytest.importorskip("pandas")
    expected = ndcg(np.float32([0.5, 0.25]), [0, 1])
    table = pandas.DataFrame({"score": [0.5, 0.25], "label": [0, 1]})
    assert jaxrank.ndcg_at_k([0.5, 0.25], [0, 1]) == expected
    assert jaxrank.ndcg_at_k(table["score"], table["label"]) == expected
    assert jax.jit(lambda a: jaxrank.ndcg_at_k([a, 0.25], [0, 1]))(0.5) == expected


def test_large_integers_are_never_wrapped_around():
    with pytest.raises(ValueError, match=r"scores.*64-bit"):
        jaxrank.ndcg_at_k(np.array([2**40, 1]), np.array([1, 0]))


@pytest.mark.parametrize(
    ("option", "error", "message"),
    [
        ({"ties": "averge"}, ValueError, "average"),
        ({"gain_fn": "linear"}, TypeError, "gain_fn.*exponential_gain"),
        ({"discount_fn": None}, TypeError, "discount_fn"),
        ({"empty": "skip"}, TypeError, "empty"),
        ({"axis": 2}, ValueError, "axis 2"),
    ],
)
def test_wrong_options(option, error, message):
    with pytest.raises(error, match=message):
        jaxrank.ndcg_at_k(np.ones(2, np.float32), np.ones(2, np.float32), **option)


# ----------------------------------------------------------------------------------------------------------- the family


@pytest.mark.parametrize("n", [1, 7, 50, 300])
@pytest.mark.parametrize("gain_fn", [jaxrank.exponential_gain, jaxrank.linear_gain, jaxrank.table_gain([0, 1, 4, 10])])
def test_perfect_order_is_exactly_one(n, gain_fn):
    rng = np.random.default_rng(n)
    labels = rng.integers(0, 4, (20, n))
    labels[:, 0] = 3
    distinct = labels + rng.uniform(0, 0.5, (20, n))
    for scores in (labels, distinct):  # tied wherever the labels are, and not at all
        for k in ((1, 3, 10), None):
            np.testing.assert_array_equal(ndcg(np.float32(scores), labels, k, gain_fn=gain_fn), 1.0)
    if gain_fn is not jaxrank.exponential_gain:
        return
    fractional = rng.random((20, n)).astype(np.float32)
    np.testing.assert_array_equal(ndcg(fractional, fractional), 1.0)


def test_ideal_labels():
    # Two relevant items were judged and one of them retrieved, at rank 2.
    value = ndcg([3.0, 2.0], [0, 1], ideal_labels=jnp.array([1, 0, 1, 0]))
    np.testing.assert_allclose(value, LOG3 / (1 + LOG3), rtol=5e-7)
    per_list = ndcg(np.ones((2, 2)), [[0, 1], [1, 1]], ideal_labels=np.array([[1, 1, 1], [1, 1, 0]]), k=2)
    np.testing.assert_allclose(per_list, [0.5, 1], rtol=5e-7)
    assert ndcg([1.0], [1], ideal_labels=np.array([0, 0])) == 0.0


def test_ideal_labels_that_miss_a_relevant_item():
    assert np.isnan(ndcg([3.0, 2.0], [1, 1], ideal_labels=np.array([1])))
    assert np.isnan(ndcg([3.0, 2.0], [1, np.nan], 1, ideal_labels=np.array([1.0])))
    with pytest.raises(ValueError, match="ideal_labels"):
        ndcg(np.ones((2, 2)), np.ones((2, 2)), ideal_labels=np.ones((3, 2)))


def test_ranked_ndcg():
    relevance = np.array([[3, 2, 3, 0, 1, 2], [0, 0, 1, 0, 0, 0]])
    positions = -np.arange(6, dtype=np.float32)
    for k in (None, 1, 3, (1, 5)):
        expected = ndcg(positions, relevance, k)
        np.testing.assert_array_equal(jaxrank.ranked_ndcg_at_k(relevance, k), expected)
        np.testing.assert_array_equal(jaxrank.ranked_ndcg_at_k(relevance.T, k, axis=0), expected.T)
    where = np.array([False, True, True, True, True, True])
    np.testing.assert_array_equal(
        jaxrank.ranked_ndcg_at_k(relevance, 2, where=where), jaxrank.ranked_ndcg_at_k(relevance[:, 1:], 2)
    )


@pytest.mark.parametrize("k", [1, 3, (2, 5), None])
def test_ndcg_is_dcg_over_ideal(k):
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(9, 8)).round().astype(np.float32), rng.integers(0, 4, (9, 8))
    where = rng.random((9, 8)) < 0.8
    ratio = jaxrank.dcg_at_k(scores, labels, k, where=where) / jaxrank.ideal_dcg_at_k(labels, k, where=where)
    np.testing.assert_allclose(ndcg(scores, labels, k, where=where), ratio, rtol=1e-6)


def test_gains():
    labels = jnp.array([-1.0, 0, 1, 2, 3, 13, 24, jnp.nan])
    np.testing.assert_array_equal(jaxrank.exponential_gain(labels), [0, 0, 1, 3, 7, 8191, 2**24 - 1, np.nan])
    np.testing.assert_array_equal(jaxrank.linear_gain(labels), [0, 0, 1, 2, 3, 13, 24, np.nan])
    table = jaxrank.table_gain([0, 0.5, 2])
    np.testing.assert_array_equal(table(jnp.array([-1.0, 0, 1, 2, 3, 0.5])), [0, 0, 0.5, 2, np.nan, np.nan])
    assert jaxrank.exponential_gain(jnp.array([127.0, 128.0, 1e9])).tolist() == [2.0**127, math.inf, math.inf]
    small = np.float32(np.geomspace(1e-30, 1, 50))
    np.testing.assert_allclose(jaxrank.exponential_gain(jnp.asarray(small)), np.expm1(small * np.log(2)), rtol=3e-7)


def test_gain_that_is_not_monotone():
    ugly = jaxrank.table_gain([1, 5, 2])
    # Ideal order of the gains: 5, 2, 1.
    value = ndcg([3.0, 2, 1], [0, 1, 2], gain_fn=ugly)
    np.testing.assert_allclose(value, (1 + 5 * LOG3 + 2 / 2) / (5 + 2 * LOG3 + 1 / 2), rtol=5e-7)
    value = ndcg([3.0, 2, 1], [0, 1, 2], 2, gain_fn=lambda labels: 4 - labels, where=np.array([True, True, False]))
    np.testing.assert_allclose(value, 1.0)


@pytest.mark.parametrize("values", [[], [[0, 1]], [0, math.inf], [0, math.nan]])
def test_bad_gain_tables(values):
    with pytest.raises(ValueError, match="table_gain"):
        jaxrank.table_gain(values)


@pytest.mark.parametrize("p", [0, 1, -0.5, 2, math.nan])
def test_bad_persistence(p):
    with pytest.raises(ValueError, match="geometric_discount"):
        jaxrank.geometric_discount(p)


@pytest.mark.parametrize(
    ("discount_fn", "discounts"),
    [
        (jaxrank.log2_discount, [1, LOG3, 0.5]),
        (jaxrank.reciprocal_discount, [1, 1 / 2, 1 / 3]),
        (jaxrank.geometric_discount(0.8), [1, 0.8, 0.64]),
        (lambda ranks: jnp.where(ranks <= 2, 1.0, 0.0), [1, 1, 0]),
    ],
)
def test_discounts(discount_fn, discounts):
    value = ndcg([3.0, 2, 1], [1, 3, 2], discount_fn=discount_fn)
    np.testing.assert_allclose(value, np.dot([1, 7, 3], discounts) / np.dot([7, 3, 1], discounts), rtol=5e-7)
