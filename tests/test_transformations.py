"""The exact metric under every transformation of JAX, and what it compiles to."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxrank
from jaxrank.data import RankingLists, padded_batches

RNG = np.random.default_rng(0)
SCORES = RNG.normal(size=(8, 12)).round(1).astype(np.float32)
LABELS = RNG.integers(0, 4, (8, 12)).astype(np.float32)
WHERE = RNG.random((8, 12)) < 0.8
OPTIONS = [{}, {"k": (1, 5)}, {"k": 3, "ties": "stable"}, {"k": 60, "ties": "best"}]


def by_name(options):
    return "-".join(f"{name}={value}" for name, value in options.items()) or "default"


@pytest.fixture(params=OPTIONS, ids=by_name)
def metric(request):
    return functools.partial(jaxrank.ndcg_at_k, **request.param)


def check(value, metric):
    np.testing.assert_allclose(value, metric(SCORES, LABELS, where=WHERE), rtol=1e-6)


def test_jit(metric):
    check(jax.jit(lambda s, y, w: metric(s, y, where=w))(SCORES, LABELS, WHERE), metric)


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, None), (None, 0, None), (None, None, 0), (1, 0, 1)])
def test_vmap_over_any_argument(metric, axes):
    given = (SCORES, LABELS, WHERE)
    arguments = [array[0] if axis is None else array.T if axis else array for array, axis in zip(given, axes)]
    value = jax.vmap(lambda s, y, w: metric(s, y, where=w), in_axes=axes)(*arguments)
    full = [np.broadcast_to(array[:1], array.shape) if axis is None else array for array, axis in zip(given, axes)]
    np.testing.assert_allclose(value, metric(full[0], full[1], where=full[2]), rtol=1e-6)


def test_vmap_over_empty():
    empty = jnp.array([0.0, 1.0, jnp.nan])
    value = jax.vmap(lambda e: jaxrank.ndcg_at_k(jnp.ones(2), jnp.zeros(2), empty=e))(empty)
    np.testing.assert_array_equal(value, empty)


def test_scan(metric):
    def step(carry, batch):
        return carry, metric(batch[0], batch[1], where=batch[2])

    check(jax.lax.scan(step, None, (SCORES, LABELS, WHERE))[1], metric)


def test_checkpoint(metric):
    check(jax.jit(jax.checkpoint(lambda s: metric(s, LABELS, where=WHERE)))(jnp.asarray(SCORES)), metric)


def test_gradient_by_scores_is_zero(metric):
    gradient = jax.grad(lambda s: metric(s, LABELS, where=WHERE).sum())(jnp.asarray(SCORES))
    np.testing.assert_array_equal(gradient, np.zeros_like(SCORES))
    _, tangent = jax.jvp(lambda s: metric(s, LABELS, where=WHERE), (SCORES,), (np.ones_like(SCORES),))
    np.testing.assert_array_equal(tangent, np.zeros_like(tangent))


def test_gradient_by_labels_is_that_of_the_formula(metric, x64):
    scores, labels = jnp.asarray(SCORES, float), jnp.asarray(LABELS + RNG.uniform(0.1, 0.4, LABELS.shape), float)

    def value(labels):
        return metric(scores, labels, where=WHERE).sum()

    value = jax.jit(value)
    gradient = jax.grad(value)(labels)
    for place in [(0, 0), (3, 5), (7, 11)]:
        step = jnp.zeros_like(labels).at[place].set(1e-6)
        numeric = (value(labels + step) - value(labels - step)) / 2e-6
        np.testing.assert_allclose(gradient[place], numeric, atol=1e-8)


def test_second_derivatives_by_labels_are_finite():
    labels = jnp.asarray(LABELS[0] + np.float32(0.25))
    hessian = jax.jit(jax.hessian(lambda labels: jaxrank.ndcg_at_k(SCORES[0], labels, 3)))(labels)
    assert np.isfinite(hessian).all() and hessian.any()


@pytest.mark.parametrize("ties", ["average", "stable", "best", "worst"])
def test_gradients_are_finite(ties):
    nan, inf = np.nan, np.inf
    cases = {
        "none relevant": ([1, 1, 0], [0, 0, 0], [1, 1, 1]),
        "infinite": ([-inf, inf, 1], [1, 0, 1], [1, 1, 1]),
        "large grade": ([1, 1, 1], [1500, 1, 0], [1, 1, 1]),
        "all masked": ([1, 2, 3], [1, 2, 0], [0, 0, 0]),
        "nan in padding": ([nan, 1, 2], [nan, 1, 2], [0, 1, 1]),
    }
    scores, labels, where = (jnp.asarray(column, jnp.float32) for column in zip(*cases.values()))

    @jax.jit
    def gradients(scores, labels, where=None):
        value = lambda s, y: jaxrank.ndcg_at_k(s, y, 2, where=where, ties=ties).sum()
        return jax.grad(value, (0, 1))(scores, labels)

    for given in ((scores, labels, where), (scores[:3], labels[:3]), (scores[:, :0], labels[:, :0])):
        by_scores, by_labels = gradients(*given)
        np.testing.assert_array_equal(by_scores, np.zeros(by_scores.shape))
        assert np.isfinite(by_labels).all()


# -------------------------------------------------------------------------------------------------------- many devices


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_sharded_batches(metric, axis_type):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(axis_type,))
    with jax.set_mesh(mesh):
        sharding = NamedSharding(mesh, PartitionSpec("data"))
        arrays = [jax.device_put(array, sharding) for array in (SCORES, LABELS, WHERE)]
        check(metric(arrays[0], arrays[1], where=arrays[2]), metric)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_shard_map(metric, axis_type):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(axis_type,))
    spec = PartitionSpec("data")

    def local(scores, labels, where):
        return metric(scores, labels, where=where)

    sharded = jax.shard_map(local, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec)
    with jax.set_mesh(mesh):
        check(
            jax.jit(sharded)(*(jax.device_put(a, NamedSharding(mesh, spec)) for a in (SCORES, LABELS, WHERE))), metric
        )


# ------------------------------------------------------------------------------------------------------------- programs


@pytest.mark.usefixtures("unchecked")  # jaxtyping compares sizes as integers, which symbolic ones are not
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_export_with_symbolic_shapes(metric, dtype):
    batch, n = export.symbolic_shape("batch, n")
    shapes = [jax.ShapeDtypeStruct((batch, n), kind) for kind in (dtype, jnp.float32, bool)]
    exported = export.export(jax.jit(lambda s, y, w: metric(s, y, where=w)), platforms=["cpu", "cuda", "rocm", "tpu"])(
        *shapes
    )
    scores = jnp.asarray((SCORES * 10).astype(np.int32)).astype(dtype)
    expected = metric(scores, LABELS, where=WHERE)
    np.testing.assert_allclose(exported.call(scores, LABELS, WHERE), expected, rtol=1e-6)


def counting(gain_fn):
    """A gain that counts how often it is traced."""

    def gain(labels):
        gain.traces += 1
        return gain_fn(labels)

    gain.traces = 0
    return gain


def test_one_compilation_for_all_batches_of_a_shape():
    gain = counting(jaxrank.exponential_gain)
    traces = []
    for seed in range(3):
        scores = np.random.default_rng(seed).normal(size=(4, 6)).astype(np.float32)
        jaxrank.ndcg_at_k(scores, LABELS[:4, :6], 3, gain_fn=gain, empty=float(seed))
        traces.append(gain.traces)
    assert traces[0] == traces[-1] > 0


def test_an_evaluation_over_length_buckets_compiles_once_a_bucket():
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.geometric(0.02, 400), 500)
    rows = rng.normal(size=lengths.sum()).astype(np.float32)
    queries = tuple(map(str, range(400)))
    lists = RankingLists(queries, lengths, rng.integers(0, 4, len(rows)).astype(np.float32), scores=rows)
    shapes = []

    @jax.jit
    def evaluate(scores, labels, where):
        shapes.append(scores.shape)
        return jaxrank.ndcg_at_k(scores, labels, 10, where=where)

    seen = set()
    for seed in (0, 1, 2):
        for batch in padded_batches(lists, batch_size=32, max_padding=0.3, rng=np.random.default_rng(seed)):
            evaluate(batch.scores, batch.labels, batch.where)
            seen.add(batch.scores.shape)
    assert 1 < len(seen) < 15 and sorted(shapes) == sorted(seen)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_programs_for_other_platforms_call_nothing_of_the_host(platform):
    given = [jax.ShapeDtypeStruct((8, 20_000), jnp.float32)] * 2
    functions = {
        "exact": functools.partial(jaxrank.ndcg_at_k, k=10),
        "NeuralSort": jax.grad(functools.partial(jaxrank.smooth_ndcg_loss, k=10)),
        "SoftSort": jax.grad(functools.partial(jaxrank.smooth_ndcg_loss, k=10, relaxation=jaxrank.soft_sort)),
    }
    for name, function in functions.items():
        module = export.export(jax.jit(function), platforms=[platform])(*given).mlir_module()
        assert "callback" not in module, name


def test_equal_options_share_a_compilation():
    gain = counting(jaxrank.exponential_gain)
    traces = []
    for _ in range(2):
        jaxrank.ndcg_at_k(SCORES, LABELS, gain_fn=gain, discount_fn=jaxrank.geometric_discount(0.5))
        traces.append(gain.traces)
    assert traces[0] == traces[1]
    assert jaxrank.table_gain([0, 1, 3]) == jaxrank.table_gain((0.0, 1.0, 3.0))
    assert hash(jaxrank.table_gain([0, 1, 3])) == hash(jaxrank.table_gain((0.0, 1.0, 3.0)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("k", "ties"), [(1, "average"), ((5, 10), "average"), (10, "stable")])
def test_selection_is_the_fast_one(dtype, k, ties):
    scores = jax.ShapeDtypeStruct((64, 1000), dtype)
    labels = jax.ShapeDtypeStruct((64, 1000), jnp.float32)
    module = jax.jit(lambda s, y: jaxrank.ndcg_at_k(s, y, k, ties=ties)).lower(scores, labels).compile().as_text()
    assert not [line for line in module.splitlines() if " sort(" in line and "64,1000" in line]


@pytest.mark.parametrize(("options", "copies"), [({}, 0), ({"where": True}, 2), ({"ties": "stable"}, 1)])
def test_working_memory(options, copies):
    """No copy of unmasked float32 scores; a mask costs one of the scores and one of the labels. (0.3: a rare mask.)"""
    shape = jax.ShapeDtypeStruct((64, 10_000), jnp.float32)
    mask = jax.ShapeDtypeStruct((64, 10_000), bool) if options.get("where") else None
    ties = options.get("ties", "average")
    compiled = (
        jax.jit(lambda s, y, w: jaxrank.ndcg_at_k(s, y, 10, where=w, ties=ties)).lower(shape, shape, mask).compile()
    )
    temporary = compiled.memory_analysis().temp_size_in_bytes
    assert temporary < (copies + 0.3) * 64 * 10_000 * 4
