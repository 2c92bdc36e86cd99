"""The recipes run as they are written, and what they say holds; old and new calls of the migration table agree."""

import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rax
from sklearn.metrics import dcg_score, ndcg_score

import jaxrank
from jaxrank import recipes

SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", recipes.__doc__, re.M | re.S))
BLOCK = re.compile(r"```python\n(.*?)```", re.S)


def run(title):
    """What the names of a recipe are in the end; a user's JAX promotes dtypes and ranks, that of the tests does not."""
    names = {}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for text in (recipes.__doc__.split("## ")[0], SECTIONS[title]):
            for block in BLOCK.findall(text):
                exec(block, names)
    return names


def falls(losses):
    return np.isfinite(losses).all() and np.mean(losses[-2:]) < np.mean(losses[:2]) - 0.02


@pytest.mark.parametrize("title", ["flax nnx", "equinox"])
def test_networks_learn(title):
    assert falls(run(title)["losses"])


def test_annealing_compiles_once():
    names = run("Annealing the temperature")
    assert falls(names["losses"])
    assert names["step"]._cache_size() == 1
    assert names["schedule"](0) == 4
    assert names["schedule"](100) == pytest.approx(0.3)


def test_bfloat16():
    names = run("Training in bfloat16")
    assert falls(names["losses"])
    assert names["weights"].dtype == np.float32
    assert names["losses"][0].dtype == np.float32


def test_scan():
    names = run("The metric inside a scan")
    whole = jaxrank.ndcg_at_k(names["features"].sum(-1), names["labels"], (1, 10), where=names["where"])
    np.testing.assert_allclose(names["mean"], whole.mean(0), rtol=1e-5)
    np.testing.assert_allclose(names["stderr"], whole.std(0, ddof=1) / len(whole) ** 0.5, rtol=1e-5)


def test_heads():
    names = run("Several heads")
    scores = 0.1 * names["features"].sum(-1)
    alone = [
        jaxrank.smooth_ndcg_loss(scores, target, k=10, where=names["where"], reduce_fn=None)
        for target in names["targets"]
    ]
    assert names["loss"] == pytest.approx(float(0.7 * alone[0].mean() + 0.3 * alone[1].mean()) / 2, rel=1e-5)
    assert (np.abs(names["gradient"]).sum(1) > 0).all()


def test_smoothing():
    names = run("Smoothing the grades")
    gains = np.asarray(names["gains"])
    mean = np.nanmean(np.where(names["where"], gains, np.nan), -1, keepdims=True)
    np.testing.assert_allclose(names["smoothed"], 0.9 * gains + 0.1 * mean, rtol=1e-5)
    assert 0 < names["loss"] < 1


# ------------------------------------------------------------------------------------------------ the migration table

ROWS = [
    tuple(cell.strip().strip("`") for cell in line.strip("|").split("|"))
    for line in SECTIONS["Moving from other libraries"].splitlines()
    if line.startswith("|")
][2:]
RNG = np.random.default_rng(0)
DATA = {
    "scores": jnp.asarray(RNG.normal(size=(6, 14)), jnp.float32),
    "labels": jnp.asarray(RNG.integers(0, 4, (6, 14)), jnp.float32),
    "where": jnp.asarray(np.arange(14) < 9 + np.arange(6)[:, None]),
}
# What the libraries that are not installed give in their own documentation.
DOCUMENTED = {
    "tfr.keras.metrics.NDCGMetric": ([[3.0, 1.0, 2.0]], [[0.0, 1.0, 1.0]], 0.6934264),
    "tfr.keras.losses.ApproxNDCGLoss": ([[0.6, 0.8]], [[1.0, 0.0]], -0.655107),
    "retrieval_normalized_dcg": ([0.1, 0.2, 0.3, 4.0, 70.0], [10.0, 0.0, 0.0, 1.0, 5.0], 0.6957),
}


def test_every_library_has_rows():
    assert {row[0] for row in ROWS} == {"rax", "TF-Ranking", "torchmetrics", "scikit-learn"}
    assert all(len(row) == 3 for row in ROWS)


@pytest.mark.parametrize("library, old, new", ROWS)
def test_old_and_new_calls_agree(monkeypatch, library, old, new):
    # rax 0.4.0 decorates by a function that newer releases of jax no longer have.
    monkeypatch.setattr(jax, "util", types.SimpleNamespace(wraps=lambda f, **words: lambda g: g), raising=False)
    names = {"jaxrank": jaxrank, "rax": rax, "ndcg_score": ndcg_score, "dcg_score": dcg_score}
    called = re.match(r"[\w.]+", old)[0]
    if called in DOCUMENTED:
        scores, labels, expected = DOCUMENTED[called]
        got = eval(new, names, {"scores": jnp.array(scores), "labels": jnp.array(labels)})
        assert got == pytest.approx(expected, abs=5e-5 if called == "retrieval_normalized_dcg" else 1e-6)
    else:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            expected = eval(old, names, DATA)
        np.testing.assert_allclose(eval(new, names, DATA), expected, rtol=1e-5)
