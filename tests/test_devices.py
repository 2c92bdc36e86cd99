"""A batch split over 8 devices: the figures of one device, and no score, label or index leaves its own."""

import re
from functools import partial

import jax
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxrank
from jaxrank.training import apply_mlp, init_mlp, train_step

# Long enough for each way to select: by groups, by radix sort, by counting grades; and for lists in several chunks.
LISTS, N, FEATURES = 16, 900, 3
RNG = np.random.default_rng(0)
BATCH = (
    RNG.normal(size=(LISTS, N)).round(1).astype(np.float32),
    RNG.integers(0, 5, (LISTS, N)).astype(np.float32),
    RNG.random((LISTS, N)) < 0.9,
)


def split(mesh, *arrays):
    return [jax.device_put(array, NamedSharding(mesh, P("data"))) for array in arrays]


TOLD = r" = (.*?) (all-gather|all-to-all|ragged-all-to-all|all-reduce|reduce-scatter|collective-[a-z]+)(?:-start)?\("


def run(function, *arrays):
    """What it gives, once it is seen that devices only add up flags, sums and parameters: nothing is gathered, and
    nothing that is told has the lists' length but flags.
    """
    program = jax.jit(function).lower(*arrays).compile()
    for kind, name in re.findall(TOLD, program.as_text()):
        assert name == "all-reduce", kind
        assert not re.search(rf"[fsu]\d+\[[0-9,]*{N}", kind), kind
    return program(*arrays)


def ndcg(scores, labels, where, **options):
    return jaxrank.ndcg_at_k(scores, labels, where=where, **options)


def approx_loss(scores, labels, where):
    return jaxrank.approx_ndcg_loss(scores, labels, k=10, where=where, kernel="laplace")


FUNCTIONS = {
    "ndcg@1": partial(ndcg, k=1),
    "ndcg, whole lists": ndcg,
    "ndcg@3 and 10, best ties": partial(ndcg, k=(3, 10), ties="best"),
    "approx_ndcg, laplace": jax.grad(approx_loss),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_lists_over_devices(name):
    function = FUNCTIONS[name]
    expected = jax.jit(function)(*BATCH)
    for axis_type in [AxisType.Auto, AxisType.Explicit] if name == "ndcg@1" else [AxisType.Auto]:
        mesh = jax.make_mesh((8,), ("data",), axis_types=(axis_type,))
        with jax.set_mesh(mesh):
            value = run(function, *split(mesh, *BATCH))
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_many_lists_over_devices():
    many = tuple(np.tile(array, (512 // LISTS, 1)) for array in BATCH)
    function = partial(ndcg, k=5)
    expected = jax.jit(function)(*many)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    np.testing.assert_allclose(run(function, *split(mesh, *many)), expected, rtol=1e-6)
    halves = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    manual = jax.shard_map(function, mesh=halves, in_specs=P("data"), out_specs=P("data"))
    np.testing.assert_allclose(run(manual, *many), expected, rtol=1e-6)


def test_values_stay_where_their_lists_are():
    mesh = jax.make_mesh((2, 4), ("models", "data"), axis_types=(AxisType.Explicit,) * 2)
    scores = np.stack([BATCH[0], -BATCH[0]])
    with jax.set_mesh(mesh):
        scores = jax.device_put(scores, NamedSharding(mesh, P("models", "data")))
        labels = jax.device_put(BATCH[1], NamedSharding(mesh, P("data")))
        for options, spec in [({"k": 1}, P("models", "data")), ({"k": (1, 2)}, P("models", "data", None))]:
            value = jax.jit(partial(jaxrank.ndcg_at_k, **options))(scores, labels)
            assert jax.typeof(value).sharding.spec == spec
        along_first = jax.jit(partial(jaxrank.ndcg_at_k, k=(1, 2), axis=0))(scores.transpose(2, 0, 1), labels.T)
        assert jax.typeof(along_first).sharding.spec == P(None, "models", "data")


def test_relaxations_stay_where_their_lists_are():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    scores, where = BATCH[0][:, :40], BATCH[2][:, :40]
    temperature = np.linspace(0.5, 2, LISTS, dtype=np.float32)
    functions = partial(jaxrank.neural_sort, k=3), partial(jaxrank.soft_sort, k=3), jaxrank.soft_ranks
    for function, own_axes in zip(functions, (2, 2, 1), strict=True):
        expected = function(scores, where=where, temperature=temperature)
        with jax.set_mesh(mesh):
            some, mask, warmth = split(mesh, scores, where, temperature)
            value = jax.jit(lambda *lists, of=function: of(lists[0], where=lists[1], temperature=lists[2]))(
                some, mask, warmth
            )
        assert jax.typeof(value).sharding.spec == P("data", *[None] * own_axes)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------------------ a training step


FEATURES_OF_ITEMS = RNG.normal(size=(LISTS, N, FEATURES)).astype(np.float32)
OPTIMISER = optax.sgd(0.1)


def local_loss(scores, labels, *, where):
    """Inside `shard_map`, where every device holds as many lists."""
    return lax.pmean(jaxrank.smooth_ndcg_loss(scores, labels, k=10, where=where), "data")


def step(loss, features, labels, where):
    params = init_mlp(jax.random.key(0), FEATURES, (4,))
    params, _, value = train_step(apply_mlp, loss, OPTIMISER, params, OPTIMISER.init(params), features, labels, where)
    return params, value


@pytest.fixture(scope="module")
def trained():
    return jax.jit(partial(step, partial(jaxrank.smooth_ndcg_loss, k=10)))(FEATURES_OF_ITEMS, *BATCH[1:])


@pytest.mark.parametrize("axes", ["Auto", "Explicit", "Manual"])
def test_training_step(trained, axes):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit if axes == "Explicit" else AxisType.Auto,))
    if axes == "Manual":
        function = jax.shard_map(partial(step, local_loss), mesh=mesh, in_specs=P("data"), out_specs=P())
    else:
        function = partial(step, partial(jaxrank.smooth_ndcg_loss, k=10))
    with jax.set_mesh(mesh):
        value = run(function, *split(mesh, FEATURES_OF_ITEMS, *BATCH[1:]))
    for ours, theirs in zip(jax.tree.leaves(value), jax.tree.leaves(trained), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
