"""The running mean: laws against NumPy in float64, every transformation, ten million updates."""

import functools
import pickle

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxrank import RankingMean, ndcg_at_k

BATCHES, SIZE = 8, 4
RNG = np.random.default_rng(0)
VALUES = RNG.random((BATCHES, SIZE)).astype(np.float32)
WHERE = RNG.random((BATCHES, SIZE)) < 0.7
WEIGHTS = RNG.random((BATCHES, SIZE)).astype(np.float32)

number = st.floats(-10, 10, width=32, allow_subnormal=False)
values_of_batches = hnp.arrays(np.float32, (3, SIZE), elements=number)
masks = hnp.arrays(bool, (3, SIZE), elements=st.booleans())
weights_of_batches = hnp.arrays(np.float32, (3, SIZE), elements=st.just(0) | st.floats(0.125, 8, width=32))


@jax.jit
def state_of(values, where, weights):
    return RankingMean.empty().update(values, where=where, weights=weights)


merge = jax.jit(RankingMean.merge)


@jax.jit
def in_turn(values, where, weights):
    """One update a batch."""
    step = lambda state, batch: (state.update(batch[0], where=batch[1], weights=batch[2]), None)
    return jax.lax.scan(step, RankingMean.empty(), (values, where, weights))[0]


def oracle(values, where, weights):
    """Mean, standard error and count by their formulas."""
    counts = where & (weights != 0)
    v, w = values[counts].astype(float), weights[counts].astype(float)
    if not len(v):
        return np.nan, np.nan, 0
    mean = (w * v).sum() / w.sum()
    if len(v) == 1:
        return mean, np.nan, 1
    variance = (w * (v - mean) ** 2).sum() / (w.sum() - (w**2).sum() / w.sum())
    return mean, np.sqrt(variance * (w**2).sum()) / w.sum(), len(v)


def numbers(state):
    return np.array([state.mean, state.stderr, state.count], float)


def check(state, expected):
    assert state.count.dtype == jnp.int32
    np.testing.assert_array_equal(state.count, expected[2])
    np.testing.assert_allclose(state.mean, expected[0], rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(state.stderr, expected[1], rtol=1e-4, atol=1e-5)


def same(state, other):
    """To rounding, but in the count."""
    assert np.array_equal(state.count, other.count)
    np.testing.assert_allclose(state.sums, other.sums, rtol=1e-5, atol=1e-4)


# ---------------------------------------------------------------------------------------------------------------- laws


@given(values_of_batches, masks, weights_of_batches)
def test_mean_and_standard_error_are_those_of_the_formulas(values, where, weights):
    check(in_turn(values, where, weights), oracle(values, where, weights))


@given(values_of_batches, masks, weights_of_batches)
def test_merging_is_updating_in_any_order_and_grouping(values, where, weights):
    a, b, c = (state_of(*batch) for batch in zip(values, where, weights))
    whole = in_turn(values, where, weights)
    same(merge(merge(a, b), c), whole)
    same(merge(a, merge(b, c)), whole)
    same(merge(c, merge(b, a)), whole)
    same(merge(RankingMean.empty(), a), a)
    same(merge(a, RankingMean.empty()), a)


@given(values_of_batches, masks, weights_of_batches)
def test_all_reduce_is_merging(values, where, weights):
    reduced = reduce_by_vmap(values, where, weights)
    merged = functools.reduce(merge, [state_of(*batch) for batch in zip(values, where, weights)], RankingMean.empty())
    np.testing.assert_array_equal(numbers(reduced), np.stack([numbers(merged)] * 3, axis=1))


@jax.jit
@functools.partial(jax.vmap, axis_name="batch")
def reduce_by_vmap(values, where, weights):
    return RankingMean.empty().update(values, where=where, weights=weights).all_reduce("batch")


@given(values_of_batches, st.floats(0.25, 8, width=32))
def test_only_ratios_of_weights_count(values, weight):
    everywhere = np.ones(values.shape, bool)
    one, other = (in_turn(values, everywhere, np.full_like(values, w)) for w in (1, weight))
    check(other, numbers(one))


def test_a_mean_of_means_would_be_wrong():
    state = RankingMean.empty().update([1.0]).merge(RankingMean.empty().update([0.0, 0.0, 0.0]))
    assert state.mean == 0.25
    np.testing.assert_allclose(state.stderr, 0.25, rtol=1e-6)  # 0.5 / sqrt(4)


# ----------------------------------------------------------------------------------------------------------- precision


@jax.jit
def ten_million(value):
    step = lambda states, _: ((states[0].update(value), states[1] + value), None)
    return jax.lax.scan(step, (RankingMean.empty(), jnp.zeros_like(value)), None, length=10_000_000)[0]


def test_ten_million_updates():
    state, naive = ten_million(jnp.float32(0.1))
    assert abs(float(state.mean) - 0.1) < 1e-7
    assert state.count == 10_000_000
    assert state.stderr < 1e-8
    assert abs(naive / 1e7 - 0.1) > 1e-3  # what a plain sum makes of it


def test_squares_do_not_cancel():
    values = 1000 + np.array([[0.0, 0.5, 0.25, 0.75], [0.125, 0.5, 0.25, 0.625], [0.0, 0.25, 0.75, 0.875]], np.float32)
    ones = np.ones_like(values)
    state = in_turn(values, ones.astype(bool), ones)
    check(state, oracle(values, ones.astype(bool), ones))


def test_large_batches():
    state = RankingMean.empty().update(np.full(1_000_000, 0.1, np.float32))
    np.testing.assert_allclose(state.mean, 0.1, rtol=2e-6)
    assert state.count == 1_000_000


def test_double_precision(x64):
    state = RankingMean.empty().update(VALUES.astype(float), weights=WEIGHTS.astype(float))
    assert state.mean.dtype == jnp.float64
    expected = oracle(VALUES, np.ones_like(WHERE), WEIGHTS)
    np.testing.assert_allclose(numbers(state), expected, rtol=1e-12)


# --------------------------------------------------------------------------------------------------------------- inputs


def test_nothing_has_no_mean():
    for state in (RankingMean.empty(), RankingMean.empty().update(VALUES, where=np.zeros_like(WHERE))):
        assert np.isnan(state.mean) and np.isnan(state.stderr) and state.count == 0


def test_one_value_has_no_standard_error():
    state = RankingMean.empty().update(0.25, weights=0.3)
    np.testing.assert_allclose(state.mean, 0.25, rtol=1e-7)
    assert np.isnan(state.stderr) and state.count == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_masked_is_not_looked_at_and_what_is_not_is_seen(bad):
    values = np.array([0.5, bad, 1.0], np.float32)
    for options in ({"where": [True, False, True]}, {"where": [2, 0, 1]}, {"weights": [1.0, 0.0, 1.0]}):
        state = RankingMean.empty().update(values, **options)
        assert state.mean == 0.75 and state.count == 2
    state = RankingMean.empty().update(values).update([1.0])
    assert np.isnan(state.mean) and state.count == 4


def test_several_means_at_once():
    """One for each cutoff: masks and weights of one entry a list serve all of them."""
    pairs = np.stack([VALUES, VALUES[::-1]], axis=-1)
    state = RankingMean.empty((2,)).update(pairs, where=WHERE, weights=WEIGHTS)
    each = [state_of(pairs[..., i], WHERE, WEIGHTS) for i in range(2)]
    np.testing.assert_allclose(state.mean, [one.mean for one in each], rtol=1e-6)
    np.testing.assert_allclose(state.stderr, [one.stderr for one in each], rtol=1e-6)
    np.testing.assert_array_equal(state.count, [one.count for one in each])
    own = np.stack([WHERE, ~WHERE], axis=-1)
    np.testing.assert_array_equal(RankingMean.empty((2,)).update(pairs, where=own).count, own.sum(axis=(0, 1)))


@pytest.mark.parametrize("dtype", [np.int32, bool, np.float16, jnp.bfloat16])
def test_any_real_dtype(dtype):
    state = RankingMean.empty().update(np.array([0, 1, 1, 1]).astype(dtype))
    assert state.mean == 0.75 and state.mean.dtype == jnp.float32


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"where": np.ones(2, bool)}, ValueError, r"where must have the shape .*\(3,\).* got \(2,\)"),
        ({"weights": np.ones((3, 1))}, ValueError, r"weights must have the shape .* got \(3, 1\)"),
        ({"weights": np.array([1.0, -1.0, 1.0])}, ValueError, "weights must not be negative; got -1.0"),
        ({"where": np.ones(3, complex)}, TypeError, "where must hold real numbers"),
    ],
    ids=["where", "weights", "negative", "complex"],
)
def test_errors(options, error, says):
    with pytest.raises(error, match=says):
        RankingMean.empty().update(np.ones(3, np.float32), **options)


def test_shape_of_the_mean_is_checked():
    with pytest.raises(ValueError, match=r"got \(3,\)"):
        RankingMean.empty((2,)).update(np.ones(3))


def test_negative_weight_that_is_traced_gives_nan():
    assert np.isnan(state_of(VALUES[0], WHERE[0], -WEIGHTS[0]).mean)


# ------------------------------------------------------------------------------------------------------ transformations


EXPECTED = oracle(VALUES, WHERE, WEIGHTS)


def test_scan():
    check(in_turn(VALUES, WHERE, WEIGHTS), EXPECTED)


def test_vmap_with_an_axis_name():
    check(reduce_by_vmap(VALUES, WHERE, WEIGHTS), [np.full(BATCHES, number) for number in EXPECTED])


def test_stacked_states():
    """As `vmap` and `scan` return them: a state of that shape."""
    stacked = jax.vmap(lambda v: RankingMean.empty().update(v))(VALUES)
    np.testing.assert_allclose(stacked.mean, VALUES.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(stacked.merge(stacked).mean, stacked.mean, rtol=1e-6)
    assert stacked.stderr.shape == stacked.count.shape == (BATCHES,)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_shard_map_and_sharded_inputs(axis_type):
    mesh = jax.make_mesh((4, 2), ("data", "more"), axis_types=(axis_type,) * 2)
    spec = PartitionSpec(("data", "more"))

    def local(values, where, weights):
        return RankingMean.empty().update(values, where=where, weights=weights).all_reduce(("data", "more"))

    with jax.set_mesh(mesh):
        given = [jax.device_put(array, NamedSharding(mesh, spec)) for array in (VALUES, WHERE, WEIGHTS)]
        check(jax.jit(jax.shard_map(local, in_specs=spec, out_specs=PartitionSpec()))(*given), EXPECTED)
        check(state_of(*given), EXPECTED)
        check(RankingMean.empty().update(given[0], where=given[1], weights=given[2]), EXPECTED)


def test_gradient_goes_through():
    gradient = jax.jit(jax.grad(lambda v: RankingMean.empty().update(v, weights=WEIGHTS[0]).mean))(VALUES[0])
    np.testing.assert_allclose(gradient, WEIGHTS[0] / WEIGHTS[0].sum(), rtol=1e-5)


def test_states_are_immutable():
    state = RankingMean.empty()
    state.update([1.0])
    assert state.count == 0
    with pytest.raises(AttributeError):
        state.count = 1  # pyright: ignore


# ------------------------------------------------------------------------------------------------------------- recipes


def test_saved_and_restored_as_plain_arrays(tmp_path):
    state = state_of(VALUES[0], WHERE[0], WEIGHTS[0])
    np.savez(tmp_path / "mean.npz", **vars(state))
    restored = RankingMean(**np.load(tmp_path / "mean.npz"))
    np.testing.assert_array_equal(numbers(restored), numbers(state))
    one, other = (some.update(VALUES[1], where=WHERE[1]).merge(some) for some in (restored, state))
    np.testing.assert_array_equal(numbers(one), numbers(other))
    np.testing.assert_array_equal(numbers(pickle.loads(pickle.dumps(state))), numbers(state))


def ndcg(model, batch):
    return ndcg_at_k(model(batch["x"])[..., 0], batch["labels"])


def test_recipes():
    """Of the docstring: batches that are merged, and a flax nnx model with its mean beside it."""
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    batches = [
        {"x": RNG.normal(size=(4, 5, 3)).astype(np.float32), "labels": RNG.integers(0, 3, (4, 5)), "real": WHERE[i]}
        for i in range(2)
    ]

    @nnx.jit
    def eval_step(model, state, batch):
        return state.update(ndcg(model, batch), where=batch["real"])

    state = RankingMean.empty()
    for batch in batches:
        state = eval_step(model, state, batch)
    values = np.concatenate([np.asarray(ndcg(model, batch))[batch["real"]] for batch in batches])
    np.testing.assert_allclose(state.mean, values.mean(), rtol=1e-6)
    merged = functools.reduce(RankingMean.merge, (eval_step(model, RankingMean.empty(), batch) for batch in batches))
    np.testing.assert_allclose(numbers(merged), numbers(state), rtol=1e-6)
