"""Every golden case, five ways and in two precisions."""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrank

CASES = json.loads((pathlib.Path(__file__).parent / "exact.json").read_text())


def number(value):
    return float(value) if isinstance(value, str) else value


def arrays(case, double):
    """Scores in their own dtype; labels in it too where it is a float type, which is what the case is about."""
    dtype = case.get("dtype", "float64" if double else "float32")
    labels_dtype = dtype if dtype.startswith("float") and not double else ("float64" if double else "float32")
    scores = np.array([number(v) for v in case["scores"]]).astype(dtype)
    labels = np.array([number(v) for v in case["labels"]]).astype(labels_dtype)
    where = np.array(case.get("where", [True] * len(scores)), bool)
    return scores, labels, where


def options(case):
    return {
        "k": case["k"],
        "gain_fn": {"exponential": jaxrank.exponential_gain, "linear": jaxrank.linear_gain}[case["gain"]],
        "ties": case["ties"],
        "empty": number(case["empty"]),
    }


def plain(case, scores, labels, where):
    mask = {"where": where} if "where" in case else {}
    return jaxrank.ndcg_at_k(scores, labels, **mask, **options(case))


# The other ways take every cutoff at once, for the same reason: `column` picks the case's own.

LENGTH = 44
CUTOFFS = (1, 2, 3, 4, 5, 6, 10, LENGTH)


def column(case, values):
    return values[..., CUTOFFS.index(LENGTH if case["k"] is None else case["k"])]


def pad(scores, labels, where):
    """To one length, with junk at both ends."""
    width = (2, LENGTH - 2 - len(scores))
    junk = np.nan if scores.dtype.kind == "f" else 100
    return (
        np.pad(scores, width, constant_values=junk),
        np.pad(labels, width, constant_values=np.nan),
        np.pad(where, width, constant_values=False),
    )


def ndcg(case, scores, labels, where):
    return jaxrank.ndcg_at_k(scores, labels, where=where, **options(case) | {"k": CUTOFFS})


@functools.partial(jax.jit, static_argnums=(4, 5))
def jitted_ndcg(scores, labels, where, empty, gain_fn, ties):
    return jaxrank.ndcg_at_k(scores, labels, CUTOFFS, where=where, gain_fn=gain_fn, ties=ties, empty=empty)


@functools.partial(jax.jit, static_argnums=(4, 5))
def vmapped_ndcg(scores, labels, where, empty, gain_fn, ties):
    def one(scores, labels, where):
        return jaxrank.ndcg_at_k(scores, labels, CUTOFFS, where=where, gain_fn=gain_fn, ties=ties, empty=empty)

    return jax.vmap(one)(scores, labels, where)


def jitted(case, scores, labels, where):
    chosen = options(case)
    values = jitted_ndcg(*pad(scores, labels, where), chosen["empty"], chosen["gain_fn"], chosen["ties"])
    return column(case, values)


def padded(case, scores, labels, where):
    return column(case, ndcg(case, *pad(scores, labels, where)))


def vmapped(case, scores, labels, where):
    stacked = [np.stack([array, array]) for array in pad(scores, labels, where)]
    chosen = options(case)
    return column(case, vmapped_ndcg(*stacked, chosen["empty"], chosen["gain_fn"], chosen["ties"])[1])


def batched(case, scores, labels, where):
    """With batch mates that hold every trap: a NaN, an infinity, all tied, all masked, none relevant."""
    scores, labels, where = pad(scores, labels, where)
    mates = (np.nan, np.inf, 0, 0) if scores.dtype.kind == "f" else (1, 2, 0, 0)
    scores = np.stack([np.full_like(scores, mate) for mate in mates] + [scores])
    labels = np.stack([np.full_like(labels, mate) for mate in (1, np.nan, 3, 0)] + [labels])
    where = np.stack([np.ones_like(where)] * 3 + [np.zeros_like(where), where])
    return column(case, ndcg(case, scores, labels, where)[-1])


@pytest.mark.parametrize("way", [plain, jitted, vmapped, batched, padded])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_float32(case, way):
    value = way(case, *arrays(case, double=False))
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, number(case["expected"]), rtol=5e-7)


@pytest.mark.parametrize("way", [plain, jitted, vmapped, batched, padded])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_float64(case, way, x64):
    value = way(case, *arrays(case, double=True))
    assert value.dtype == jnp.float64
    np.testing.assert_allclose(value, number(case["expected"]), rtol=1e-12)
