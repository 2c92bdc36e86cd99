"""Flat lists: list by list what padded lists give, which the rest of the suite holds to oracles and golden cases."""

import functools
import json
import pathlib

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

import jaxrank
from jaxrank import dense_segments, ndcg_at_k, neural_sort, segment_ndcg_at_k, segment_smooth_ndcg_at_k, soft_sort

HERE = pathlib.Path(__file__).parent
TIES = ("average", "stable", "best", "worst")
ROWS, LISTS = 40, 5
CUTOFFS = (1, 3, ROWS)
RNG = np.random.default_rng(0)


def padded(array, ids, fill, lists, length):
    """One list a row, in the order of the rows, of one length."""
    rows = [array[ids == q] for q in range(lists)]
    return np.stack([np.pad(row, (0, length - len(row)), constant_values=fill) for row in rows])


def as_lists(scores, labels, ids, where, lists=LISTS, length=ROWS):
    given = (scores, np.nan), (labels, np.nan), (where, False)
    return [padded(array, ids, fill, lists, length) for array, fill in given]


# ----------------------------------------------------------------------------------------------------------- the table


def number(value):
    return float(value) if isinstance(value, str) else value


def flattened(cases, dtype, size):
    """Cases side by side, each a list, shuffled among rows that belong to none: NaN, at ids out of range."""
    lengths = [len(case["scores"]) for case in cases]
    ids = np.repeat(np.arange(len(cases)), lengths)
    scores, labels = (np.array([number(v) for case in cases for v in case[name]]) for name in ("scores", "labels"))
    where = np.concatenate([np.broadcast_to(case.get("where", True), n) for case, n in zip(cases, lengths)])
    junk = size - len(ids)
    ids = np.append(ids, np.resize([-1, -7, 10**6], junk)).astype(np.int32)
    scores, labels = (np.append(array, np.full(junk, np.nan)) for array in (scores, labels))
    scores = np.nan_to_num(scores) if np.dtype(dtype).kind in "iu" else scores
    order = interleaved(ids)
    arrays = scores.astype(dtype), labels.astype(np.float32), ids, np.append(where, np.ones(junk, bool))
    return [array[order] for array in arrays]


def interleaved(ids):
    """An order of the rows that mixes the lists, and leaves each list's rows in theirs."""
    shuffled = RNG.permutation(ids)
    order = np.empty(len(ids), int)
    for q in np.unique(ids):
        order[shuffled == q] = np.flatnonzero(ids == q)
    return order


CASES = json.loads((HERE / "exact.json").read_text())
CASE_CUTOFFS = (1, 2, 3, 4, 5, 6, 10, 300)
GAINS = {"exponential": jaxrank.exponential_gain, "linear": jaxrank.linear_gain}


def kind_of(case):
    return case["gain"], case["ties"], case.get("dtype", "float32"), str(case["empty"])


# Smaller types go the way of float32, to which they are converted; and gains do not depend on how ties are ranked.
KINDS = [kind for kind in sorted({kind_of(case) for case in CASES}) if kind[1:3] == ("average", "float32")]
KINDS += [("exponential", ties, "float32", "0.0") for ties in TIES[1:]] + [("exponential", "average", "int32", "0.0")]


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_golden_cases(kind):
    """All cases of one kind as one flat list."""
    cases = [case for case in CASES if kind_of(case) == kind]
    gain, ties, dtype, empty = kind
    scores, labels, ids, where = flattened(cases, dtype, 300)
    options = {"k": CASE_CUTOFFS, "gain_fn": GAINS[gain], "ties": ties, "empty": float(empty)}
    values = segment_ndcg_at_k(scores, labels, ids, num_segments=30, where=where, **options)
    assert values.shape == (30, len(CASE_CUTOFFS)) and values.dtype == jnp.float32
    np.testing.assert_array_equal(values[len(cases) :], np.full_like(values[len(cases) :], float(empty)))
    for case, row in zip(cases, values):
        value = row[CASE_CUTOFFS.index(case["k"] or 300)]
        np.testing.assert_allclose(value, number(case["expected"]), rtol=5e-7, err_msg=case["name"])


SMOOTH_CASES = json.loads((HERE / "smooth.json").read_text())


SMOOTH_ROWS, SMOOTH_LISTS, SMOOTH_CUTOFFS = 90, 12, (2, 3, 4, 5, 14)


@functools.partial(jax.jit, static_argnames=("relaxation", "balance"))
def smooth_value_and_gradient(scores, labels, ids, where, temperature, chosen, relaxation, balance=0):
    """The gradient of each list's chosen cutoffs."""
    options = {"where": where, "temperature": temperature, "relaxation": relaxation, "balance": balance}
    options |= {"num_segments": SMOOTH_LISTS, "k": SMOOTH_CUTOFFS}

    def total(scores):
        values = segment_smooth_ndcg_at_k(scores, labels, ids, **options)
        return (values * chosen).sum(), values

    gradient, values = jax.grad(total, has_aux=True)(scores)
    return values, gradient


@pytest.mark.parametrize("relaxation", [neural_sort, soft_sort], ids=["neural", "soft"])
def test_golden_smooth_cases(relaxation):
    cases = [case for case in SMOOTH_CASES if case["relaxation"] == relaxation.__name__]
    scores, labels, ids, where = flattened(cases, np.float32, SMOOTH_ROWS)
    chosen = np.zeros((SMOOTH_LISTS, len(SMOOTH_CUTOFFS)), np.float32)
    temperature = np.ones(SMOOTH_LISTS, np.float32)
    for q, case in enumerate(cases):
        chosen[q, SMOOTH_CUTOFFS.index(case["k"] or 14)] = 1
        temperature[q] = case["temperature"]
    values, gradient = smooth_value_and_gradient(scores, labels, ids, where, temperature, chosen, relaxation)
    values = (values * chosen).sum(axis=1)[: len(cases)]
    np.testing.assert_allclose(values, [case["expected"] for case in cases], rtol=2e-6)
    for q, case in enumerate(cases):
        if case["gradient"] is not None:
            np.testing.assert_allclose(gradient[ids == q], case["gradient"], rtol=2e-5, atol=2e-6, err_msg=case["name"])
    assert not gradient[(ids < 0) | (ids >= len(cases)) | ~where].any()


# ----------------------------------------------------------------------------------------------------- any flat lists


TIED_SCORES = st.sampled_from([-np.inf, -1.5, -0.0, 0.0, 0.5, 3.0, np.inf, np.nan])
SCORES = TIED_SCORES | st.floats(allow_nan=False, allow_subnormal=False, width=32)
GRADES = st.sampled_from([-2, 0, 0, 1, 2, 3, 4])
LABELS = GRADES | st.sampled_from([31, 128, 1500, np.nan]) | st.floats(2**-100, 40, width=32)
IDS = hnp.arrays(np.int32, ROWS, elements=st.integers(-1, LISTS))
MASKS = hnp.arrays(bool, ROWS, elements=st.booleans())
RULES = {
    **{ties: {"ties": ties} for ties in ("average", "best")},
    "falling table": {"gain_fn": jaxrank.table_gain([0, 3, 0, 7, 2]), "discount_fn": jaxrank.geometric_discount(0.75)},
}


def floats(elements, dtype=np.float32):
    return hnp.arrays(dtype, ROWS, elements=elements)


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())
@settings(max_examples=25)
@given(data=st.data())
def test_equal_to_padded_lists(rules, data):
    """Here labels 5 and 6 have no gain in the table: NaN."""
    scores, ids, where = data.draw(floats(SCORES)), data.draw(IDS), data.draw(MASKS)
    labels = data.draw(floats(GRADES | st.sampled_from([5, 6]) if "gain_fn" in rules else LABELS))
    check_against_padded(scores, labels, ids, where, 1e-6, **rules)


def check_against_padded(scores, labels, ids, where, rtol, **rules):
    options = {"k": CUTOFFS, "empty": 0.125, **rules}
    values = segment_ndcg_at_k(scores, labels, ids, num_segments=LISTS, where=where, **options)
    scores, labels, where = as_lists(scores, labels, ids, where)
    expected = ndcg_at_k(scores, labels, where=where, **options)
    np.testing.assert_allclose(values, expected, rtol=rtol, atol=1e-7)
    np.testing.assert_array_equal(values == 1, expected == 1)


@settings(max_examples=10)
@given(data=st.data())
def test_equal_to_padded_lists_in_float64(data):
    with jax.enable_x64(True):
        scores, labels = data.draw(floats(SCORES, np.float64)), data.draw(floats(LABELS, np.float64))
        check_against_padded(scores, labels, data.draw(IDS).astype(np.int64), data.draw(MASKS), 1e-12)


@functools.partial(jax.jit, static_argnames=("relaxation", "balance"))
def padded_smooth(scores, labels, where, temperature, chosen, relaxation, balance):
    """From the rows themselves: a function of one's own takes no fused path."""

    def total(scores):
        options = {"where": where, "temperature": temperature, "balance": balance}
        rows = lambda *given, **options: relaxation(*given, **options)
        values = jaxrank.smooth_ndcg_at_k(scores, labels, SMOOTH_CUTOFFS, relaxation=rows, **options)
        return (values * chosen).sum(), values

    gradient, values = jax.grad(total, has_aux=True)(scores)
    return values, gradient


def random_rows(seed):
    rng = np.random.default_rng(seed)
    scores, labels = rng.normal(size=SMOOTH_ROWS).round(seed), rng.integers(-1, 5, SMOOTH_ROWS)
    scores[rng.random(SMOOTH_ROWS) < 0.1] = -np.inf
    ids, where = rng.integers(-1, SMOOTH_LISTS + 1, SMOOTH_ROWS), rng.random(SMOOTH_ROWS) < 0.8
    return scores.astype(np.float32), labels.astype(np.float32), ids.astype(np.int32), where


@pytest.mark.parametrize(
    ("relaxation", "balance"), [(neural_sort, 0), (soft_sort, 2)], ids=["neural", "soft, balanced"]
)
def test_smooth_is_equal_to_padded_lists(relaxation, balance):
    """In the end four lists hold a NaN or an infinity, and leave the others alone."""
    temperature = np.resize(np.array([0.3, 1, 1, 4, 0.1], np.float32), SMOOTH_LISTS)
    chosen = np.random.default_rng(0).random((SMOOTH_LISTS, len(SMOOTH_CUTOFFS))).astype(np.float32)
    for seed in range(4):
        scores, labels, ids, where = random_rows(seed)
        bad = [(scores, np.nan), (scores, np.inf), (labels, np.nan), (labels, np.inf)] if seed == 3 else []
        for q, (array, value) in enumerate(bad):
            ids[q], where[q], array[q] = q, True, value
        values, gradient = smooth_value_and_gradient(
            scores, labels, ids, where, temperature, chosen, relaxation, balance
        )
        lists = as_lists(scores, labels, ids, where, SMOOTH_LISTS, 20)
        expected, slopes = padded_smooth(*lists, temperature, chosen, relaxation, balance)
        np.testing.assert_allclose(values, expected, rtol=3e-6)
        assert np.isnan(values).any(axis=1).sum() == len(bad)
        assert np.isfinite(gradient).all()
        for q in range(len(bad), SMOOTH_LISTS):
            slope = np.asarray(slopes[q])[: (ids == q).sum()]
            np.testing.assert_allclose(gradient[ids == q], slope, rtol=2e-5, atol=4e-6 * (1 + np.abs(slope).max()))


def test_balanced_neural_sort():
    scores, labels, ids, where = random_rows(1)
    options = {"k": SMOOTH_CUTOFFS, "temperature": 0.5, "balance": 3}
    values = segment_smooth_ndcg_at_k(scores, labels, ids, num_segments=SMOOTH_LISTS, where=where, **options)
    scores, labels, where = as_lists(scores, labels, ids, where, SMOOTH_LISTS, 20)
    np.testing.assert_allclose(values, jaxrank.smooth_ndcg_at_k(scores, labels, where=where, **options), rtol=3e-6)
    assert (values <= 1).all()


# ------------------------------------------------------------------------------------------------------ transformations


IDS_OF_ROWS = RNG.integers(-1, LISTS + 1, ROWS)
SCORES_OF_ROWS = RNG.normal(size=(3, ROWS)).round(1).astype(np.float32)
LABELS_OF_ROWS = RNG.permutation(np.linspace(-0.5, 4, ROWS)).astype(np.float32)  # all different
WHERE_OF_ROWS = RNG.random(ROWS) < 0.8


@jax.jit
def flat_values(scores, labels, ids, where):
    return segment_ndcg_at_k(scores, labels, ids, num_segments=LISTS, k=3, where=where)


def test_jit_and_vmap():
    rows = LABELS_OF_ROWS, IDS_OF_ROWS, WHERE_OF_ROWS
    each = [flat_values(scores, *rows) for scores in SCORES_OF_ROWS]
    scores, labels, where = as_lists(SCORES_OF_ROWS[0], *rows)
    np.testing.assert_allclose(each[0], ndcg_at_k(scores, labels, 3, where=where), rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(flat_values, (0, None, None, None))(SCORES_OF_ROWS, *rows), each, rtol=1e-6)


def test_gradients():
    """Zero by the scores, that of the padded lists by the labels; NaN in masked rows reaches neither."""
    scores, labels = SCORES_OF_ROWS[0].copy(), LABELS_OF_ROWS.copy()
    scores[~WHERE_OF_ROWS] = labels[~WHERE_OF_ROWS] = np.nan
    total = lambda s, y: flat_values(s, y, IDS_OF_ROWS, WHERE_OF_ROWS).sum()
    by_scores, by_labels = jax.jit(jax.grad(total, (0, 1)))(jnp.asarray(scores), jnp.asarray(labels))
    np.testing.assert_array_equal(by_scores, np.zeros(ROWS))
    scores, labels, where = as_lists(scores, labels, IDS_OF_ROWS, WHERE_OF_ROWS)
    expected = jax.jit(jax.grad(lambda y: ndcg_at_k(scores, y, 3, where=where).sum()))(jnp.asarray(labels))
    for q in range(LISTS):
        of_list = q == IDS_OF_ROWS
        np.testing.assert_allclose(by_labels[of_list], expected[q, : of_list.sum()], rtol=1e-5, atol=1e-7)
    assert np.abs(by_labels).max() > 0.01
    assert not by_labels[(IDS_OF_ROWS < 0) | (IDS_OF_ROWS >= LISTS) | ~WHERE_OF_ROWS].any()


def test_sharded_rows():
    mesh = jax.make_mesh((8,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = SCORES_OF_ROWS[0], LABELS_OF_ROWS, IDS_OF_ROWS, WHERE_OF_ROWS
    sharded = [jax.device_put(array, NamedSharding(mesh, PartitionSpec("rows"))) for array in rows]
    np.testing.assert_allclose(flat_values(*sharded), flat_values(*rows), rtol=1e-6)


def test_memory_is_linear_in_the_rows():
    """3.7 million rows must stay under 400 MiB: 113 bytes a row. No table of lists x longest list."""
    rows, lists = 100_000, 20_000
    shapes = [jax.ShapeDtypeStruct((rows,), dtype) for dtype in (jnp.float32, jnp.float32, jnp.int32)]
    function = jax.jit(lambda s, y, ids: segment_ndcg_at_k(s, y, ids, num_segments=lists, k=(5, 10)))
    assert function.lower(*shapes).compile().memory_analysis().temp_size_in_bytes < 100 * rows


def test_memory_of_the_smooth_gradient_does_not_grow_with_rows_times_k():
    rows, k = 20_000, 50
    shapes = [jax.ShapeDtypeStruct((rows,), dtype) for dtype in (jnp.float32, jnp.float32, jnp.int32)]
    loss = lambda s, y, ids: segment_smooth_ndcg_at_k(s, y, ids, num_segments=100, k=k).sum()
    temporary = jax.jit(jax.grad(loss)).lower(*shapes).compile().memory_analysis().temp_size_in_bytes
    assert temporary < k * rows * 4


# ------------------------------------------------------------------------------------------------------------- the ids


def test_ids_out_of_range_are_dropped_as_by_segment_sum():
    ids = np.array([0, 1, 100, 1, -1, 0], np.int8)
    dropped = jax.ops.segment_sum(jnp.ones(6), ids, 2)
    np.testing.assert_array_equal(dropped, [2, 2])
    labels = np.array([1, 2, 9, 0, 9, 3], np.float32)
    values = segment_ndcg_at_k(np.array([2, 1, 9, 2, 9, 1], np.float32), labels, ids, num_segments=2)
    expected = ndcg_at_k(np.array([[2.0, 1], [1, 2]]), np.array([[1.0, 3], [2, 0]]))
    np.testing.assert_allclose(values, expected, rtol=1e-6)


def test_nothing_to_rank():
    none = np.zeros(0, np.float32)
    values = segment_ndcg_at_k(none, none, none.astype(int), num_segments=3, empty=0.5)
    np.testing.assert_array_equal(values, [0.5] * 3)
    smooth = segment_smooth_ndcg_at_k(none, none, none.astype(int), num_segments=3, k=2, empty=0.5)
    np.testing.assert_array_equal(smooth, [0.5] * 3)
    one = np.ones(1, np.float32)
    assert segment_ndcg_at_k(one, one, one.astype(int), num_segments=0).shape == (0,)


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 10**18]), min_size=1, max_size=8)
    | st.lists(st.text(max_size=3), max_size=8)
)
def test_dense_segments(ids):
    ids = np.array(ids) if ids else np.array([], str)
    segments = dense_segments(ids)
    assert segments.segment_ids.dtype == np.int32
    assert segments.num_segments == len(segments.ids) == len(set(ids.tolist()))
    np.testing.assert_array_equal(segments.ids[segments.segment_ids], ids)


def test_dense_segments_of_columns():
    table = pa.table({"query": ["b", "a", "b"], "number": [2**40, 7, 2**40]})
    for column in ("query", "number"):
        segments = dense_segments(table[column])
        values = segment_ndcg_at_k([1.0, 0, 0], [0, 1, 1], segments.segment_ids, num_segments=segments.num_segments)
        named = dict(zip(segments.ids.tolist(), values.tolist()))
        first, second, _ = table[column].to_pylist()
        assert named[second] == 1.0 and 0 < named[first] < 1


@pytest.mark.parametrize(
    ("ids", "error", "says"),
    [
        (["a", None], ValueError, "row 1 is missing"),
        (np.array([np.nan, 1.0]), ValueError, "row 0 is missing"),
        ([[1, 2]], ValueError, r"one-dimensional, one a row; got shape \(1, 2\)"),
    ],
    ids=["None", "NaN", "2-D"],
)
def test_dense_segments_errors(ids, error, says):
    with pytest.raises(error, match=says):
        dense_segments(ids)
    with pytest.raises(TypeError, match=r"traced; call it outside jax.jit"):
        jax.jit(dense_segments)(jnp.arange(3))


GIVEN = {"scores": np.ones(3), "labels": np.ones(3), "segment_ids": np.zeros(3, int), "num_segments": 1}


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"labels": np.ones(2)}, ValueError, r"one length, .* got scores \(3,\), labels \(2,\)"),
        ({"where": np.ones((3, 1))}, ValueError, r"where \(3, 1\)"),
        ({name: np.ones((1, 3), int) for name in ("scores", "labels", "segment_ids")}, ValueError, "ndcg_at_k"),
        ({"segment_ids": np.zeros(3)}, TypeError, "must be integers .* jaxrank.dense_segments"),
        ({"segment_ids": np.zeros(3, bool)}, TypeError, "must be integers"),
        ({"segment_ids": ["a", "b", "c"]}, TypeError, "segment_ids must hold .* jaxrank.dense_segments"),
        ({"segment_ids": np.array([0, 1, 10**12])}, ValueError, "outside int32 .* jaxrank.dense_segments"),
        ({"num_segments": 1.0}, TypeError, "num_segments must be an int; got 1.0"),
        ({"num_segments": True}, TypeError, "num_segments must be an int"),
        ({"num_segments": -1}, ValueError, "num_segments must not be negative"),
        ({"k": 0}, ValueError, "k must be at least 1"),
        ({"ties": "mean"}, ValueError, "ties must be one of"),
        ({"scores": np.ones(3, complex)}, TypeError, "scores must hold real numbers"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_errors(change, error, says):
    with pytest.raises(error, match=says):
        segment_ndcg_at_k(**GIVEN | change)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"k": None}, ValueError, "k must be given on flat lists"),
        ({"relaxation": lambda scores: scores}, ValueError, "neural_sort or soft_sort"),
        ({"temperature": 0.0}, ValueError, "temperature must be positive"),
        ({"temperature": np.ones(3)}, ValueError, r"one for each list, \(1,\); got shape \(3,\)"),
        ({"balance": -1}, ValueError, "balance"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_smooth_errors(change, error, says):
    with pytest.raises(error, match=says):
        segment_smooth_ndcg_at_k(**GIVEN | {"k": 2} | change)


def test_num_segments_must_be_static():
    with pytest.raises(TypeError, match=r"num_segments must be known .* static_argnames='num_segments'"):
        jax.jit(segment_ndcg_at_k, static_argnames="k")(**GIVEN)
