"""The loop: reproducible, resumable, early-stopped, for any model; and what it feeds the model."""

import equinox as eqx
import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrank import training
from jaxrank.data import RankingLists
from jaxrank.data.synthetic import generated_splits
from jaxrank.training import apply_mlp, evaluate, fit, fit_standardiser, init_mlp, init_state, softmax_loss

OPTIMISER = optax.adam(1e-2)


@pytest.fixture(scope="module")
def splits():
    raw = generated_splits(queries=(40, 20, 20), features=8)
    raw = {name: shortened(lists, 14) for name, lists in raw.items()}  # fewer shapes to compile
    standardiser = fit_standardiser(training.features_of(raw["train"]))
    return {name: standardiser(lists) for name, lists in raw.items()}


def shortened(lists, length):
    lengths = np.minimum(lists.lengths, length)
    rows = np.repeat(lists.offsets[:-1] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    return RankingLists(lists.queries, lengths, lists.labels[rows], features=training.features_of(lists)[rows])


def first_state(params=None):
    return init_state(init_mlp(jax.random.key(0), 8, (8,)) if params is None else params, OPTIMISER)


def trained(splits, apply=apply_mlp, state=None, **options):
    settings = {"loss_fn": softmax_loss, "optimiser": OPTIMISER, "epochs": 3, "seed": 0} | options
    return fit(apply, state or first_state(), splits["train"], splits["valid"], **settings)


def naive_ndcg(scores, labels, k):
    discounts = 1 / np.log2(np.arange(2, k + 2))
    dcg, ideal = (
        float(np.dot((2**x - 1)[:k], discounts[: len(x)])) for x in (labels[np.argsort(-scores)], -np.sort(-labels))
    )
    return dcg / ideal if ideal else 0.0


def assert_equal_states(one, other):
    jax.tree.map(np.testing.assert_array_equal, tuple(one), tuple(other))


# ---------------------------------------------------------------------------------------------------------- the loop


def test_it_learns(splits):
    state = trained(splits, epochs=10)
    before, after = (evaluate(apply_mlp, p, splits["test"], 10).mean() for p in (first_state().params, state.best))
    assert after > before + 0.1
    assert state.history[-1, 0] < state.history[0, 0]


def test_a_seed_fixes_the_run(splits):
    assert_equal_states(trained(splits), trained(splits))
    assert not np.array_equal(trained(splits).history, trained(splits, seed=1).history)


@pytest.mark.parametrize("done", [1, 2])
def test_resumed_run_ends_in_the_same_state(splits, done):
    assert_equal_states(trained(splits), trained(splits, state=trained(splits, epochs=done)))


def test_states_outlive_the_steps_that_donate_theirs(splits):
    states = []
    trained(splits, on_epoch=states.append)
    assert [state.epoch for state in states] == [1, 2, 3]
    assert all(np.isfinite(leaf).all() for state in states for leaf in jax.tree.leaves(state[:3]))


def test_best_is_the_epoch_with_the_highest_validation_ndcg(splits):
    states = []
    last = trained(splits, epochs=6, on_epoch=states.append)
    assert last.best_epoch == np.argmax(last.history[:, 1]) + 1
    jax.tree.map(np.testing.assert_array_equal, last.best, states[last.best_epoch - 1].params)


def test_recorded_ndcg_is_the_exact_one(splits):
    state = trained(splits, epochs=1)
    scores = training.predict(apply_mlp, state.params, splits["valid"])
    parts = zip(*(np.split(x, splits["valid"].offsets[1:-1]) for x in (scores, splits["valid"].labels)), strict=True)
    expected = np.mean([naive_ndcg(s, y, 10) for s, y in parts])
    np.testing.assert_allclose(state.history[0, 1], expected, rtol=1e-5)


def test_it_stops_when_validation_stays(splits):
    state = trained(splits, epochs=50, patience=2, loss_fn=lambda scores, labels, where: 0 * scores.sum())
    assert state.epoch == 3 and state.best_epoch == 1


def test_the_network_gets_zeros_in_padding_and_the_loss_a_mask(splits):
    seen = []

    def loss_fn(scores, labels, *, where):
        jax.debug.callback(lambda *x: seen.append([np.asarray(y) for y in x]), scores, labels, where)
        return softmax_loss(scores, labels, where=where)

    trained(
        splits,
        apply=lambda p, x: apply_mlp(p, x) + jnp.where(jnp.any(x != 0, -1), 0, jnp.nan),
        loss_fn=loss_fn,
        epochs=1,
    )
    jax.effects_barrier()
    assert sum(where.sum() for _, _, where in seen) == len(splits["train"].labels)
    assert all((labels[~where] == 0).all() for _, labels, where in seen)


def test_a_loss_that_is_nan_stops_with_advice(splits):
    with pytest.raises(FloatingPointError, match="loss is nan in epoch 1; check the features for NaN, or lower"):
        trained(splits, loss_fn=lambda scores, labels, where: jnp.nan * scores.sum())


def test_lists_without_features_are_refused(splits):
    bare = RankingLists(("a",), np.array([2]), np.array([0, 1], np.float32))
    with pytest.raises(ValueError, match="valid has no features; read a file that has them"):
        trained(splits | {"valid": bare})


# -------------------------------------------------------------------------------------------------------- any model


class LinenScorer(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, features):
        return flax.linen.Dense(1)(flax.linen.relu(flax.linen.Dense(8)(features))).squeeze(-1)


class NnxScorer(flax.nnx.Module):
    def __init__(self, rngs):
        self.first, self.last = flax.nnx.Linear(8, 8, rngs=rngs), flax.nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, features):
        return self.last(flax.nnx.relu(self.first(features))).squeeze(-1)


def linen():
    model = LinenScorer()
    return model.apply, model.init(jax.random.key(0), jnp.zeros((1, 1, 8)))


def nnx():
    graph, params = flax.nnx.split(NnxScorer(flax.nnx.Rngs(0)))
    return lambda params, features: flax.nnx.merge(graph, params)(features), params


def equinox():
    params, static = eqx.partition(eqx.nn.MLP(8, "scalar", 8, 1, key=jax.random.key(0)), eqx.is_array)
    return lambda params, features: jax.vmap(jax.vmap(eqx.combine(params, static)))(features), params


@pytest.mark.parametrize("build", [linen, nnx, equinox])
def test_models_of_other_libraries_train_unchanged(splits, build):
    apply, params = build()
    state = trained(splits, apply, first_state(params), epochs=10)
    before, after = (evaluate(apply, p, splits["test"], 10).mean() for p in (params, state.best))
    assert after > before + 0.1


# ----------------------------------------------------------------------------------------------- scores and features


def test_predictions_come_in_the_order_of_the_rows(splits):
    lists = splits["test"]
    params = first_state().params
    expected = apply_mlp(params, jnp.asarray(lists.features))
    np.testing.assert_allclose(training.predict(apply_mlp, params, lists), expected, rtol=1e-5, atol=1e-6)


def test_best_feature_is_the_one_a_loop_finds(splits):
    lists = splits["train"]
    values = {
        (feature, sign): training.ndcg_by_list(lists, sign * lists.features[:, feature], 5).mean()
        for feature in range(8)
        for sign in (1, -1)
    }
    assert training.best_feature(lists, 5) == max(values, key=values.__getitem__)


def test_taken_lists_keep_their_rows(splits):
    lists = splits["train"]
    chosen = np.array([7, 0, 3])
    taken = training.take_lists(lists, chosen)
    assert taken.queries == tuple(lists.queries[i] for i in chosen)
    for i, j in enumerate(chosen):
        rows, wanted = (slice(x.offsets[n], x.offsets[n + 1]) for x, n in ((taken, i), (lists, j)))
        np.testing.assert_array_equal(training.features_of(taken)[rows], training.features_of(lists)[wanted])
        np.testing.assert_array_equal(taken.labels[rows], lists.labels[wanted])


def test_standardised_features_have_mean_0_and_variance_1(splits):
    features = training.features_of(splits["train"])
    np.testing.assert_allclose(features.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(features.std(0), 1, atol=1e-4)


@pytest.mark.parametrize(
    ("column", "skewed"),
    [([0, 1, 5, 1000], True), ([-1, 0, 5, 1000], False), ([1, 2, 3, 4], False), ([3, 3, 3, 3], False)],
)
def test_log1p_is_for_long_tails_of_counts(column, skewed):
    standardiser = fit_standardiser(np.array(column, np.float32)[:, None])
    assert standardiser.skewed.tolist() == [skewed]


def test_a_feature_that_was_constant_in_training_says_nothing():
    standardiser = fit_standardiser(np.full((5, 1), 3, np.float32))
    assert standardiser.transform(np.array([[3], [1e6], [-1e6]], np.float32)).tolist() == [[0], [0], [0]]


def test_a_skewed_feature_may_be_negative_later():
    standardiser = fit_standardiser(np.array([[0], [1], [5], [1000]], np.float32))
    assert np.isfinite(standardiser.transform(np.array([[-2], [1e9]], np.float32))).all()


# -------------------------------------------------------------------------------------------------------- the losses


def test_softmax_loss_by_hand():
    scores, labels = jnp.array([[1.0, 2.0, 7.0]]), jnp.array([[1.0, 3.0, 9.0]])
    where = jnp.array([[True, True, False]])
    log_z = np.log(np.exp(1) + np.exp(2))
    np.testing.assert_allclose(softmax_loss(scores, labels, where=where), log_z - (1 * 1 + 3 * 2) / 4, rtol=1e-6)


@pytest.mark.parametrize("name", ["smooth", "softmax", "mse"])
def test_lists_that_only_fill_up_change_no_loss(name):
    loss_fn = training.named_loss(name)
    scores, labels, where = jnp.array([[1.0, 2.0]]), jnp.array([[1.0, 0.0]]), jnp.ones((1, 2), bool)
    padded = [jnp.pad(x, ((0, 1), (0, 2))) for x in (scores.at[0, 0].set(3.0), labels, where)]
    padded[0] = jnp.where(padded[2], padded[0], jnp.nan)
    value, grad = jax.jit(jax.value_and_grad(lambda s: loss_fn(s, padded[1], where=padded[2])))(padded[0])
    expected = jax.jit(loss_fn)(scores.at[0, 0].set(3.0), labels, where=where)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert (grad[~padded[2]] == 0).all()


@pytest.mark.parametrize("name", ["smooth", "softmax", "mse"])
def test_lists_with_nothing_relevant_count_in_no_mean(name):
    scores, labels, where = (
        jnp.array([[1.0, 2.0], [5.0, 3.0]]),
        jnp.array([[1.0, 0.0], [0.0, 0.0]]),
        jnp.ones((2, 2), bool),
    )
    loss_fn = jax.jit(training.named_loss(name))
    np.testing.assert_allclose(loss_fn(scores, labels, where=where), loss_fn(scores[:1], labels[:1], where=where[:1]))


def test_unknown_loss_gets_the_nearest_name():
    with pytest.raises(ValueError, match=r"got 'sofmax'\. Did you mean 'softmax'"):
        training.named_loss("sofmax")


def test_a_temperature_for_a_loss_without_one_is_refused():
    with pytest.raises(ValueError, match=r"temperature is 1\.0, but the loss 'mse' has none"):
        training.named_loss("mse", temperature=1.0)
