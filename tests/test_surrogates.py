"""Smooth NDCG: golden cases, the textbook matrices, the limit of low temperature, and the twelve traps."""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxrank
from jaxrank import neural_sort, smooth_dcg_at_k, smooth_ndcg_at_k, soft_sort

CASES = json.loads((pathlib.Path(__file__).parent / "smooth.json").read_text())
RELAXATIONS = {"neural_sort": neural_sort, "soft_sort": soft_sort}
both = pytest.mark.parametrize("relaxation", RELAXATIONS.values(), ids=RELAXATIONS.keys())

CUTOFFS = (1, 2, 3, 4, 5)
LENGTH = 14


@functools.partial(jax.jit, static_argnames=("k", "relaxation", "balance"))
def value_and_gradient(scores, labels, where=None, temperature=1.0, *, k=None, relaxation=neural_sort, balance=0):
    """The value of each list, or each cutoff, and its gradient."""
    options = {"where": where, "temperature": temperature, "relaxation": relaxation, "balance": balance}
    values, pull = jax.vjp(lambda scores: smooth_ndcg_at_k(scores, labels, k, **options), scores)
    if isinstance(k, tuple):
        return values, jax.vmap(lambda row: pull(row)[0])(jnp.eye(len(k), dtype=values.dtype))
    return values, pull(jnp.ones_like(values))[0]


def at(k, scores, labels, where=None, temperature=1.0, *, relaxation=neural_sort, junk=np.nan):
    """Value and gradient of a short list, padded to one length and taken at all cutoffs, so as to compile once."""
    n, dtype = len(scores), scores.dtype
    pad = ((1, LENGTH - 1 - n),)
    where = np.pad(np.ones(n, bool) if where is None else where, pad)
    scores, labels = (np.pad(array, pad, constant_values=junk) for array in (scores, labels.astype(dtype)))
    temperature = np.asarray(temperature, np.promote_types(dtype, np.float32))
    cutoffs = CUTOFFS if k in CUTOFFS else (LENGTH,)
    values, gradients = value_and_gradient(scores, labels, where, temperature, k=cutoffs, relaxation=relaxation)
    place = cutoffs.index(min(k or LENGTH, LENGTH))
    gradient = np.asarray(gradients[place])
    assert not gradient[:1].any() and not gradient[n + 1 :].any(), "padding has a gradient"
    return np.asarray(values[place]), gradient[1 : n + 1]


# ------------------------------------------------------------------------------------------------------ the textbook


@jax.custom_jvp
def absolute(x):
    return jnp.abs(x)


@absolute.defjvp
def absolute_jvp(x, dx):
    return jnp.abs(x[0]), jnp.sign(x[0]) * dx[0]


def textbook_rows(scores, k, temperature, relaxation):
    n = scores.shape[-1]
    if relaxation is neural_sort:
        slope = (n - 1 - 2 * jnp.arange(k)).astype(scores.dtype)
        logits = slope[:, None] * scores[None] - absolute(scores[:, None] - scores[None]).sum(0, keepdims=True)
    else:
        logits = -absolute(jnp.sort(scores, descending=True)[:k, None] - scores[None])
    return jax.nn.softmax(logits / temperature, axis=-1)


def textbook(scores, labels, k, temperature, relaxation, balance=0):
    """Float64, whole matrices, one list."""
    k = min(k or len(labels), len(labels))
    rows = textbook_rows(scores, k, temperature, relaxation)
    for _ in range(balance):
        rows = rows / rows.sum(-1, keepdims=True)
        rows = rows / jnp.maximum(rows.sum(0, keepdims=True), 1)
    gains = 2.0**labels - 1
    discount = 1 / jnp.log2(jnp.arange(2.0, k + 2))
    return (rows @ gains) @ discount / (jnp.sort(gains, descending=True)[:k] @ discount)


PATHS = [  # relaxation, n, k, balance, dtype: one tile; a window and all; rows in blocks; few ranks and many
    (neural_sort, 300, 10, 0, "float32"),
    (neural_sort, 300, 10, 3, "float64"),
    (neural_sort, 150, 40, 0, "float64"),
    (soft_sort, 60, 10, 0, "float32"),
    (soft_sort, 60, None, 0, "float64"),
    (soft_sort, 60, 10, 3, "float64"),
    (soft_sort, 60, 40, 3, "float64"),
]


@pytest.mark.parametrize(("relaxation", "n", "k", "balance", "dtype"), PATHS)
def test_value_and_gradient_are_the_textbooks(relaxation, n, k, balance, dtype, x64):
    rng = np.random.default_rng(n)
    labels = rng.integers(0, 5, n).astype(float)
    kinds = {
        "normal": rng.normal(size=n),
        "offset": 100 + rng.normal(size=n),
        "nearly tied": 1 + 1e-6 * rng.permutation(n),
        "heavy tails": rng.standard_cauchy(n),
    }
    close = {"rtol": 0, "atol": 1e-5 if dtype == "float32" else 1e-10}
    oracle = jax.jit(jax.value_and_grad(textbook), static_argnums=(2, 4, 5))
    for kind, scores in kinds.items():
        scores = scores.astype(dtype)
        for temperature in (0.1, 1.0, 0.1 * n):
            warmth = jnp.asarray(temperature, dtype)
            value, gradient = value_and_gradient(
                scores, labels.astype(dtype), None, warmth, k=k, relaxation=relaxation, balance=balance
            )
            want, slope = oracle(scores.astype(float), labels, k, temperature, relaxation, balance)
            np.testing.assert_allclose(value, want, **close, err_msg=kind)
            scale = max(1, np.abs(slope).max())
            np.testing.assert_allclose(
                np.asarray(gradient) / scale, slope / scale, **close, err_msg=f"{kind} {temperature}"
            )


@pytest.mark.parametrize(("relaxation", "n", "k"), [(neural_sort, 9, 3), (soft_sort, 9, 3), (neural_sort, 50, 40)])
def test_gradients_are_finite_differences(relaxation, n, k, x64):
    rng = np.random.default_rng(6)
    scores, labels, step = rng.normal(size=n), rng.integers(0, 4, n).astype(float), 1e-5 * np.eye(n)
    value = functools.partial(smooth_ndcg_at_k, relaxation=relaxation, temperature=0.7)
    ahead, back = (value(scores + move, np.broadcast_to(labels, (n, n)), k) for move in (step, -step))
    _, gradient = value_and_gradient(scores, labels, None, 0.7, k=k, relaxation=relaxation)
    np.testing.assert_allclose(gradient, (ahead - back) / 2e-5, rtol=0, atol=1e-6)


# ------------------------------------------------------------------------------------------------------ golden cases


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES, ids=[f"{case['name']}, {case['relaxation']}" for case in CASES])
def test_golden(case, dtype, x64):
    scores, labels = (np.array([float(value) for value in case[name]], dtype) for name in ("scores", "labels"))
    options = {"relaxation": RELAXATIONS[case["relaxation"]], "junk": np.inf}
    value, gradient = at(case["k"], scores, labels, case.get("where"), case["temperature"], **options)
    assert value.dtype == gradient.dtype == dtype
    tolerance = 2e-6 if dtype == "float32" else 1e-10
    np.testing.assert_allclose(value, case["expected"], rtol=0, atol=tolerance)
    if case["gradient"] is not None:
        np.testing.assert_allclose(gradient, case["gradient"], rtol=0, atol=tolerance)


# ------------------------------------------------------------------------------------ the limit of low temperature


@st.composite
def lists(draw, n=8, low=-3, high=3):
    """A list with ties, masked slots and items that were not retrieved; multiples of 1/4, exact in float32."""
    numbers = st.lists(st.integers(low, high), min_size=n, max_size=n)
    scores = np.array(draw(numbers), np.float32) / 4
    labels = np.array(draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)), np.float32)
    where = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    lost = np.array(draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))) == 0
    return np.where(lost, -np.inf, scores).astype(np.float32), labels, where


@both
@pytest.mark.parametrize("balance", [0, 2])
@given(lists())
def test_low_temperature_is_the_exact_metric(relaxation, balance, arrays):
    scores, labels, where = arrays
    cutoffs = (1, 2, 3, 5, 8)
    options = {"temperature": 1e-4, "relaxation": relaxation, "balance": balance}
    smooth = smooth_ndcg_at_k(scores, labels, cutoffs, where=where, empty=0.25, **options)
    exact = jaxrank.ndcg_at_k(scores, labels, cutoffs, where=where, empty=0.25)
    np.testing.assert_allclose(smooth, exact, rtol=0, atol=2e-6)


@both
@given(lists(high=9), st.sampled_from([0.01, 0.3, 1.0, 5.0]))
def test_balanced_never_exceeds_one(relaxation, arrays, temperature):
    scores, labels, where = arrays
    value, gradient = value_and_gradient(
        scores, labels, where, jnp.float32(temperature), k=(1, 3, 8), relaxation=relaxation, balance=1
    )
    assert (value >= 0).all() and (value <= 1).all()
    assert np.isfinite(gradient).all()


def test_unbalanced_can_exceed_one():
    case = next(case for case in CASES if case["name"] == "above one")
    scores, labels = np.float32(case["scores"]), np.float32(case["labels"])
    assert smooth_ndcg_at_k(scores, labels) > 1.05
    assert smooth_ndcg_at_k(scores, labels, balance=1) <= 1


# ---------------------------------------------------------------------------------------------------- the twelve traps


@pytest.mark.parametrize("k", [1, 2, None])
def test_trap_1_tied_scores_climb(k):
    labels = np.float32([0, 1, 3])
    _, gradient = at(k, np.zeros(3, np.float32), labels)
    centred = 2**labels - 1 - (2**labels - 1).mean()
    slope = (gradient @ centred) / (centred @ centred)
    assert slope > 0.01
    np.testing.assert_allclose(gradient, slope * centred, rtol=0, atol=2e-6)  # float32, as the golden cases


def test_trap_1_one_step_from_tied_scores_sorts():
    labels = np.float32([0, 0, 1, 0, 2, 0, 0, 3])
    _, gradient = at(3, np.zeros(8, np.float32), labels)
    assert jaxrank.ndcg_at_k(100 * gradient, labels, 3) > 0.99


@both
def test_trap_2_not_retrieved(relaxation):
    scores, labels, found = np.float32([1, -np.inf, 3, 2]), np.float32([1, 2, 2, 0]), np.array([0, 2, 3])
    value, gradient = at(3, scores, labels, relaxation=relaxation)
    without, slope = at(3, scores[found], labels[found], relaxation=relaxation)
    ratio = jaxrank.ideal_dcg_at_k(labels[found], 3) / jaxrank.ideal_dcg_at_k(labels, 3)
    np.testing.assert_allclose(value, without * ratio, rtol=1e-6)
    np.testing.assert_allclose(gradient[found], slope * ratio, rtol=0, atol=1e-6)
    assert gradient[1] == 0


@both
def test_traps_3_and_7_padding_reaches_nothing(relaxation):
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=6).astype(np.float32), rng.integers(0, 4, 6).astype(np.float32)
    where = np.array([False, True, True, False, True, True, True, True, False])
    want, slope = value_and_gradient(scores, labels, k=CUTOFFS, relaxation=relaxation)
    for junk in (np.nan, np.inf, -np.inf, 3e38):
        long_scores, long_labels = np.full(9, junk, np.float32), np.full(9, junk, np.float32)
        long_scores[where], long_labels[where] = scores, labels
        for place, k in enumerate(CUTOFFS):
            value, gradient = at(k, long_scores, long_labels, where, relaxation=relaxation, junk=junk)
            np.testing.assert_allclose(value, want[place], rtol=1e-6)
            np.testing.assert_allclose(gradient[where], slope[place], rtol=0, atol=1e-6)
            assert not gradient[~where].any()


@both
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e10, 1e30, 1e38])
def test_trap_4_scores_of_any_size(relaxation, scale):
    scores = np.float32(scale) * np.float32([1, -1, 0.25, -1, 3])
    labels = np.float32([0, 1, 2, 0, 3])
    value, gradient = at(3, scores, labels, relaxation=relaxation)
    assert np.isfinite(value) and np.isfinite(gradient).all()
    if scale >= 1e10:
        np.testing.assert_allclose(value, jaxrank.ndcg_at_k(scores, labels, 3), rtol=1e-6)
        assert not gradient.any()  # the tied pair is at ranks 4 and 5


def test_trap_4_float16_does_not_overflow():
    value = smooth_dcg_at_k(np.float16([3e4, -3e4, 0]), np.float32([1, 0, 2]), 2)  # gains 1, 0, 3
    np.testing.assert_allclose(value, 1 + 3 / np.log2(3), rtol=1e-6)


@both
@pytest.mark.parametrize("temperature", [1e-10, 1e-40])
@pytest.mark.parametrize("scores", [[0.3, 0.1, 0.1, -2.0], [0.0, 0.0, 0.0, 0.0]])
def test_trap_5_lowest_temperatures(relaxation, temperature, scores):
    scores, labels = np.float32(scores), np.float32([0, 1, 0, 3])
    hard = jaxrank.ndcg_at_k(scores, labels, 3)
    value, gradient = at(3, scores, labels, None, temperature, relaxation=relaxation)
    np.testing.assert_allclose(value, hard, rtol=1e-6)
    assert not np.isnan(gradient).any()
    value = smooth_ndcg_at_k(scores, labels, 3, temperature=temperature, relaxation=relaxation)
    np.testing.assert_allclose(value, hard, rtol=1e-6)


@both
@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan])
def test_trap_5_temperature_must_be_positive(relaxation, temperature):
    scores, labels = np.float32([0.3, 0.1]), np.float32([0, 1])
    with pytest.raises(ValueError, match="temperature must be positive"):
        smooth_ndcg_at_k(scores, labels, temperature=temperature, relaxation=relaxation)
    traced = jax.jit(lambda warmth: smooth_ndcg_at_k(scores, labels, temperature=warmth, relaxation=relaxation))
    assert np.isnan(traced(temperature))


@both
def test_trap_6_lists_without_a_value_and_their_mates(relaxation):
    rng = np.random.default_rng(1)
    scores, labels = rng.normal(size=(4, 8)).astype(np.float32), rng.integers(0, 4, (4, 8)).astype(np.float32)
    where = np.ones((4, 8), bool)
    where[1], labels[2], scores[3, 0] = False, 0, np.nan
    value, gradient = value_and_gradient(scores, labels, where, k=3, relaxation=relaxation)
    alone, slope = at(3, scores[0], labels[0], relaxation=relaxation)
    np.testing.assert_allclose(value[0], alone, rtol=1e-6)
    np.testing.assert_allclose(gradient[0], slope, rtol=0, atol=1e-6)
    assert not value[1:3].any() and not gradient[1:3].any() and np.isnan(value[3])
    nothing = smooth_ndcg_at_k(scores, labels, 3, where=where, relaxation=relaxation, empty=np.nan)
    np.testing.assert_array_equal(np.isnan(nothing), [False, True, True, True])


@both
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite_in_a_valid_slot_is_nan(relaxation, bad):
    assert np.isnan(at(2, np.float32([1, bad, 0]), np.float32([0, 1, 2]), relaxation=relaxation)[0])
    assert np.isnan(at(2, np.float32([1, 2, 0]), np.float32([0, np.nan, 1]), relaxation=relaxation)[0])


@both
@pytest.mark.parametrize(("n", "k"), [(3, 7), (1, 5), (4, 4)])
def test_trap_8_few_items(relaxation, n, k):
    scores, labels = np.linspace(0, 1, n, dtype=np.float32), np.arange(1, n + 1, dtype=np.float32)
    value = smooth_ndcg_at_k(scores, labels, k, relaxation=relaxation)
    padded, slope = at(None, scores, labels, relaxation=relaxation)
    np.testing.assert_allclose(value, padded, rtol=1e-6)
    if n == 1:
        assert value == 1 and not slope.any()


def gap_form(scores, labels, k, temperature):
    """NeuralSort in float64 by prefix sums, for lists too long for the textbook."""
    order = np.argsort(-scores, kind="stable")
    s, g = scores[order].astype(float), 2.0 ** labels[order] - 1
    rank, total = np.arange(len(s)), np.cumsum(s)
    distances = s * (2 * rank + 2 - len(s)) - 2 * total + total[-1]
    distances = -distances  # sum over j of |s_i - s_j|, s descending
    dcg = ideal = 0.0
    for i in range(k):
        logits = ((len(s) - 1 - 2 * i) * s - distances) / temperature
        weights = np.exp(logits - logits.max())
        dcg += weights @ g / weights.sum() / np.log2(i + 2)
        ideal += np.sort(g)[::-1][i] / np.log2(i + 2)
    return dcg / ideal


@pytest.mark.parametrize("kind", ["nearly tied", "normal", "two clusters", "one ahead"])
def test_trap_9_the_band_widens(kind):
    """Adversarial for a window of fixed width: long runs of scores that are nearly the same."""
    n, rng = 100_000, np.random.default_rng(2)
    scores = {
        "nearly tied": 1e-7 * rng.permutation(n),
        "normal": rng.normal(size=n),
        "two clusters": np.where(np.arange(n) < 60, 1.0, 0) + 1e-9 * rng.normal(size=n),
        "one ahead": np.where(np.arange(n) == 7, 50.0, 0) + 1e-4 * rng.normal(size=n),
    }[kind].astype(np.float32)
    labels = rng.integers(0, 5, n).astype(np.float32)
    for temperature in (0.01, 1.0, 100.0):
        value = _long(scores, labels, jnp.float32(temperature))
        np.testing.assert_allclose(value, gap_form(scores, labels, 10, temperature), rtol=0, atol=1e-5)


@jax.jit
def _long(scores, labels, temperature):
    return smooth_ndcg_at_k(scores, labels, 10, temperature=temperature)


@both
def test_trap_10_equal_lists_and_permuted_lists(relaxation):
    rng = np.random.default_rng(4)
    scores, labels = rng.integers(-4, 5, (4, 8)).astype(np.float32), rng.integers(0, 4, (4, 8)).astype(np.float32)
    order = rng.permutation(8)
    scores[1], labels[1], scores[2], labels[2] = scores[0], labels[0], scores[0][order], labels[0][order]
    value, gradient = value_and_gradient(scores, labels, np.ones((4, 8), bool), k=3, relaxation=relaxation)
    np.testing.assert_array_equal(value[0], value[1])
    np.testing.assert_array_equal(gradient[0], gradient[1])
    np.testing.assert_allclose(value[2], value[0], rtol=1e-6)
    np.testing.assert_allclose(gradient[2], gradient[0][order], rtol=0, atol=1e-6)


@both
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_trap_11_low_precision(relaxation, dtype):
    scores = np.asarray(jnp.asarray(np.random.default_rng(5).normal(size=12), dtype))
    labels = np.arange(12) % 4
    value, gradient = value_and_gradient(scores, labels, k=5, relaxation=relaxation)
    want, slope = at(5, scores.astype(np.float32), labels, relaxation=relaxation)
    assert gradient.dtype == dtype and value.dtype == jnp.float32
    np.testing.assert_allclose(value, want, rtol=1e-6)
    digits = jnp.finfo(dtype).eps
    np.testing.assert_allclose(gradient.astype(float), slope, rtol=digits, atol=digits * np.abs(slope).max())


@both
def test_trap_12_second_order(relaxation, x64):
    rng = np.random.default_rng(6)
    labels = np.array([0, 1, 3, 0, 2, 0, 1.0])
    value = functools.partial(smooth_ndcg_at_k, relaxation=relaxation, temperature=0.7)
    hessian = jax.jit(jax.hessian(lambda scores: value(scores, labels, 3)))
    want = jax.jit(jax.hessian(lambda scores: textbook(scores, labels, 3, 0.7, relaxation)))
    scores = rng.normal(size=7)
    np.testing.assert_allclose(hessian(scores), want(scores), rtol=0, atol=1e-10)
    np.testing.assert_allclose(hessian(scores), hessian(scores).T, rtol=0, atol=1e-12)
    assert np.isfinite(hessian(np.zeros(7))).all()
    both_reverse = jax.jit(jax.jacrev(jax.grad(lambda scores: value(scores, labels, 3))))
    np.testing.assert_allclose(both_reverse(scores), want(scores), rtol=0, atol=1e-10)


# --------------------------------------------------------------------------------------------------- what it shares


@both
def test_shifting_the_scores_changes_nothing(relaxation):
    rng = np.random.default_rng(8)
    scores, labels = rng.integers(-999, 999, 12) / np.float32(256), rng.integers(0, 4, 12).astype(np.float32)
    value, gradient = at(5, scores, labels, relaxation=relaxation)
    moved, slope = at(5, scores + np.float32(512), labels, relaxation=relaxation)
    assert value == moved and (gradient == slope).all()


@both
@pytest.mark.parametrize(("k", "keepdims"), [(2, True), ((1, 4), False)])
def test_options_are_those_of_the_exact_metric(relaxation, k, keepdims):
    rng = np.random.default_rng(9)
    scores, labels = rng.normal(size=(3, 6, 2)), rng.integers(0, 6, (1, 6, 2))
    options = {
        "where": rng.integers(0, 2, (3, 6, 2)),
        "axis": 1,
        "keepdims": keepdims,
        "gain_fn": jaxrank.table_gain([0, 1, 1, 2, 7, 7]),
        "discount_fn": jaxrank.geometric_discount(0.8),
    }
    pairs = (smooth_ndcg_at_k, jaxrank.ndcg_at_k), (smooth_dcg_at_k, jaxrank.dcg_at_k)
    for smooth, exact in pairs:
        value = smooth(scores, labels, k, temperature=1e-4, relaxation=relaxation, **options)
        want = exact(scores, labels, k, **options)
        assert value.shape == want.shape
        np.testing.assert_allclose(value, want, rtol=1e-5)


@both
@pytest.mark.parametrize("balance", [0, 1])
def test_one_ranking_of_many_sets_of_labels(relaxation, balance):
    rng = np.random.default_rng(17)
    scores, labels = rng.normal(size=9).astype(np.float32), rng.integers(0, 4, (2, 9)).astype(np.float32)
    options = {"k": 4, "relaxation": relaxation, "balance": balance}
    each = value_and_gradient(np.stack([scores, scores]), labels, **options)
    value, gradient = value_and_gradient(scores, labels, **options)
    np.testing.assert_allclose(value, each[0], rtol=1e-6)
    np.testing.assert_allclose(gradient, each[1].sum(axis=0), rtol=0, atol=1e-6)


@both
def test_large_labels_are_rescaled(relaxation):
    scores, labels = np.float32([0.3, 0.2, 0.1]), np.float32([1498, 1500, 0])
    value, _ = at(None, scores, labels, None, 1e-3, relaxation=relaxation)
    np.testing.assert_allclose(value, jaxrank.ndcg_at_k(scores, labels), rtol=1e-6)


def rows_of(relaxation):
    """The same rows, by a function that is not one of the two."""
    return lambda scores, *, k, where, temperature: relaxation(scores, k=k, where=where, temperature=temperature)


@both
@pytest.mark.parametrize("balance", [0, 2])
def test_any_relaxation(relaxation, balance):
    rng = np.random.default_rng(10)
    scores, labels = rng.normal(size=(2, 9)).astype(np.float32), rng.integers(0, 4, (2, 9)).astype(np.float32)
    arrays = scores, labels, rng.integers(0, 4, (2, 9)) > 0, jnp.float32([0.3, 2])
    fused = value_and_gradient(*arrays, k=4, relaxation=relaxation, balance=balance)
    built = value_and_gradient(*arrays, k=4, relaxation=rows_of(relaxation), balance=balance)
    np.testing.assert_allclose(fused[0], built[0], rtol=1e-5)
    np.testing.assert_allclose(fused[1], built[1], rtol=0, atol=2e-6)


@pytest.mark.parametrize(("k", "balance"), [(7, 2), (40, 0)])  # in pairs, and along the sorted list
def test_soft_sort_of_tied_scores_is_its_rows(k, balance, x64):
    rng = np.random.default_rng(15)
    scores, labels = rng.integers(-4, 5, (5, 60)) / 4.0, rng.integers(0, 4, (5, 60)).astype(float)
    scores[0], scores[1, ::3], where = 0, -np.inf, rng.integers(0, 4, (5, 60)) > 0
    where[2], where[3] = np.arange(60) < 5, False
    arrays = scores, labels, where, jnp.asarray([0.3, 1, 2, 1, 1e-3])
    fused, built = (
        value_and_gradient(*arrays, k=k, relaxation=each, balance=balance) for each in (soft_sort, rows_of(soft_sort))
    )
    np.testing.assert_allclose(fused[0], built[0], rtol=1e-12)
    np.testing.assert_allclose(fused[1], built[1], rtol=0, atol=1e-10)


def test_straight_through():
    scores, labels = np.float32([0.3, -0.1, 0.7, 0.3]), np.float32([1, 0, 2, 3])
    through = functools.partial(smooth_ndcg_at_k, k=3, straight_through=True)
    value, gradient = jax.jit(jax.value_and_grad(through))(scores, labels)
    assert value == jaxrank.ndcg_at_k(scores, labels, 3)
    np.testing.assert_allclose(gradient, at(3, scores, labels)[1], rtol=0, atol=1e-6)
    assert smooth_dcg_at_k(scores, labels, 3, straight_through=True) == jaxrank.dcg_at_k(scores, labels, 3)


@both
def test_one_temperature_a_list(relaxation):
    rng = np.random.default_rng(11)
    scores, labels = rng.normal(size=(2, 3, 8)).astype(np.float32), rng.integers(0, 4, (2, 3, 8)).astype(np.float32)
    temperature = np.float32([[0.1, 1, 3], [5, 0.3, 1]])
    values = smooth_ndcg_at_k(scores, labels, 3, temperature=temperature, relaxation=relaxation)
    for place in np.ndindex(2, 3):
        alone, _ = at(3, scores[place], labels[place], None, temperature[place], relaxation=relaxation)
        np.testing.assert_allclose(values[place], alone, rtol=3e-6)
    with pytest.raises(ValueError, match=r"one for each list, \(2, 3\); got shape \(2,\)"):
        smooth_ndcg_at_k(scores, labels, 3, temperature=np.float32([1, 2]), relaxation=relaxation)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"balance": -1}, ValueError, "balance is a number of sweeps"),
        ({"balance": 1.0}, ValueError, "balance is a number of sweeps"),
        ({"relaxation": "neural_sort"}, TypeError, "relaxation must be a function such as jaxrank.neural_sort"),
        ({"k": 0}, ValueError, "k must be at least 1"),
        ({"temperature": "warm"}, TypeError, "temperature"),
    ],
)
def test_errors(options, error, message):
    with pytest.raises(error, match=message):
        smooth_ndcg_at_k(np.zeros(3, np.float32), np.zeros(3, np.float32), **options)


# --------------------------------------------------------------------------------------------------- transformations


@pytest.mark.parametrize(("relaxation", "n"), [(neural_sort, 90), (soft_sort, 12)])
def test_transformations(relaxation, n):
    """Of 90 items 53 stand before a `cond`, of which temperature 30 takes the other branch."""
    rng = np.random.default_rng(12)
    scores, labels = rng.normal(size=(8, n)).astype(np.float32), rng.integers(0, 4, (8, n)).astype(np.float32)
    tangent = rng.normal(size=(8, n)).astype(np.float32)

    def value(scores, labels, temperature):
        return smooth_ndcg_at_k(scores, labels, 5, temperature=temperature, relaxation=relaxation)

    one = jax.value_and_grad(value)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = {"in_specs": (jax.P("d"), jax.P("d"), jax.P()), "out_specs": jax.P("d")}
    forms = {
        "scan and checkpoint": jax.jit(
            lambda s, y, t: jax.lax.map(lambda a: jax.value_and_grad(jax.checkpoint(value))(*a, t), (s, y))
        ),
        "shard_map and vmap": jax.jit(jax.shard_map(jax.vmap(one, (0, 0, None)), mesh=mesh, **specs)),
    }
    moved = jax.jit(lambda s, t: jax.jvp(lambda s: value(s, labels, t), (s,), (tangent,))[1])
    for temperature in (np.float32(1), np.float32(30)):
        want, slope = value_and_gradient(scores, labels, None, temperature, k=5, relaxation=relaxation)
        for name, form in forms.items():
            got, gradient = form(scores, labels, temperature)
            np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=name)
            np.testing.assert_allclose(gradient, slope, rtol=0, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(moved(scores, temperature), (slope * tangent).sum(-1), rtol=0, atol=1e-5)


@both
@pytest.mark.usefixtures("unchecked")  # jaxtyping compares sizes as integers, which symbolic ones are not
def test_export_with_symbolic_shapes(relaxation):
    rng = np.random.default_rng(16)
    scores, labels = rng.normal(size=(3, 90)).astype(np.float32), rng.integers(0, 4, (3, 90)).astype(np.float32)
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch, n"), jnp.float32)
    step = jax.jit(jax.grad(lambda s, y: smooth_ndcg_at_k(s, y, 5, relaxation=relaxation).sum()))
    exported = jax.export.export(step, platforms=["cpu", "cuda", "tpu"])(shape, shape)
    np.testing.assert_allclose(exported.call(scores, labels), step(scores, labels), rtol=0, atol=1e-6)


def test_the_fallback_stays_a_branch_under_vmap():
    scores, labels = jnp.zeros((4, 500)), jnp.ones((4, 500))
    jaxpr = jax.make_jaxpr(jax.vmap(lambda s, y: smooth_ndcg_at_k(s, y, 10)))(scores, labels)
    assert "cond[" in str(jaxpr)


@both
def test_annealing_does_not_compile_again(relaxation):
    traces = []

    def gain(labels):
        traces.append(1)
        return labels

    scores, labels = np.float32([0.3, 0.1]), np.float32([0, 1])
    for temperature in (1.0, 0.5, 0.1):
        for empty in (0.0, 1.0):
            smooth_ndcg_at_k(
                scores, labels, 1, temperature=temperature, relaxation=relaxation, empty=empty, gain_fn=gain
            )
        if temperature == 1.0:
            once = len(traces)
    assert len(traces) == once


MEBIBYTE = 2**20
LIMITS = [  # lists, n, k, relaxation, MiB
    (64, 2048, 10, neural_sort, 8),
    (1024, 128, 10, neural_sort, 8 if jax.__version_info__ >= (0, 10) else 9),  # 8.5 by the XLA of jax 0.8
    (1, 100_000, 10, neural_sort, 32),
    (64, 2048, None, neural_sort, 64),
    (64, 2048, None, soft_sort, 64),
]


@pytest.mark.parametrize(("batch", "n", "k", "relaxation", "limit"), LIMITS)
def test_memory(batch, n, k, relaxation, limit):
    array = jax.ShapeDtypeStruct((batch, n), jnp.float32)
    loss = functools.partial(jaxrank.smooth_ndcg_loss, k=k, relaxation=relaxation)
    compiled = jax.jit(jax.value_and_grad(loss)).lower(array, array).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < limit * MEBIBYTE


# ------------------------------------------------------------------------------------------------------- ApproxNDCG


def approx_textbook(scores, labels, k, temperature, kernel):
    difference = (scores[None] - scores[:, None]) / temperature
    if kernel == "logistic":
        beaten = jax.nn.sigmoid(difference)
    else:
        beaten = jnp.where(difference < 0, jnp.exp(-jnp.abs(difference)) / 2, 1 - jnp.exp(-jnp.abs(difference)) / 2)
    ranks = 0.5 + beaten.sum(-1)
    inside = 1 if k is None else jax.nn.sigmoid((k + 0.5 - ranks) / temperature)
    gains = 2.0**labels - 1
    discount = 1 / jnp.log2(jnp.arange(2.0, len(labels) + 2))[:k]
    ideal = jnp.sort(gains, descending=True)[:k] @ discount
    return (gains * inside / jnp.log2(1 + ranks)).sum() / ideal


kernels = pytest.mark.parametrize("kernel", ["logistic", "laplace"])


@kernels
@pytest.mark.parametrize("k", [None, 5])
def test_approx_is_the_textbooks(kernel, k, x64):
    rng = np.random.default_rng(13)
    scores, labels = rng.normal(size=50), rng.integers(0, 5, 50).astype(float)
    value = functools.partial(jaxrank.approx_ndcg_at_k, kernel=kernel)
    ours = jax.jit(jax.value_and_grad(lambda scores, t: value(scores, labels, k, temperature=t)))
    oracle = jax.jit(jax.value_and_grad(lambda scores, t: approx_textbook(scores, labels, k, t, kernel)))
    for temperature in (0.1, 1.0):
        (got, gradient), (want, slope) = ours(scores, temperature), oracle(scores, temperature)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-10)
        np.testing.assert_allclose(gradient, slope, rtol=0, atol=1e-9)


@kernels
def test_approx_at_ties_and_second_order(kernel, x64):
    scores, labels, step = np.array([1.0, 0, 1, 1, 0]), np.array([0, 1, 2, 0, 0.0]), 1e-6 * np.eye(5)
    value = lambda scores: jaxrank.approx_ndcg_at_k(scores, labels, kernel=kernel)
    gradient, values = jax.jit(jax.grad(value)), jax.jit(jax.vmap(value))
    np.testing.assert_allclose(gradient(scores), (values(scores + step) - values(scores - step)) / 2e-6, atol=1e-6)
    scores = np.random.default_rng(0).normal(size=5)
    want = jax.jit(jax.hessian(lambda scores: approx_textbook(scores, labels, None, 1.0, kernel)))(scores)
    np.testing.assert_allclose(jax.jit(jax.hessian(value))(scores), want, rtol=0, atol=1e-10)


@kernels
@pytest.mark.parametrize("k", [None, (1, 2, 3)])
def test_approx_limit_masks_and_padding(kernel, k):
    rng = np.random.default_rng(14)
    scores, labels = rng.permutation(9).astype(np.float32), rng.integers(0, 4, 9).astype(np.float32)
    where = np.arange(9) < 6
    scores[6:], labels[6:], scores[1] = np.nan, np.inf, -np.inf

    @jax.jit
    def value_and_slope(scores, labels, where, temperature):
        value = functools.partial(jaxrank.approx_ndcg_at_k, temperature=temperature, kernel=kernel, empty=0.5)
        values, pull = jax.vjp(lambda scores: value(scores, labels, k, where=where), scores)
        return values, pull(jnp.ones_like(values))[0]

    value, _ = value_and_slope(scores, labels, where, 0.01)
    np.testing.assert_allclose(value, jaxrank.ndcg_at_k(scores, labels, k, where=where), rtol=0, atol=1e-6)
    long, short = (value_and_slope(scores[:n], labels[:n], where[:n], 1.0) for n in (9, 6))
    np.testing.assert_allclose(long[0], short[0], rtol=1e-6)
    np.testing.assert_allclose(long[1], np.pad(short[1], (0, 3)), rtol=0, atol=1e-6)
    nothing, slope = value_and_slope(scores, labels, where & False, 1.0)
    assert (nothing == 0.5).all() and not slope.any()
    assert np.isnan(value_and_slope(scores, labels, where | True, 1.0)[0]).all()


@kernels
def test_approx_straight_through(kernel):
    scores, labels = np.float32([0.3, -0.1, 0.7, 0.3]), np.float32([1, 0, 2, 3])
    value = jaxrank.approx_ndcg_at_k(scores, labels, 3, kernel=kernel, straight_through=True)
    np.testing.assert_allclose(value, jaxrank.ndcg_at_k(scores, labels, 3), rtol=2e-7)


def test_approx_refuses_an_unknown_kernel():
    with pytest.raises(ValueError, match="kernel must be one of 'logistic', 'laplace'; got 'laplac'"):
        jaxrank.approx_ndcg_at_k(np.zeros(3, np.float32), np.zeros(3, np.float32), kernel="laplac")
