"""Every preset against its system, on random lists with ties, masks and cutoffs.

The systems take one list at a time, without its masked items; jaxrank takes all lists in one padded batch whose
padding lies between the items and holds NaN.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import lightgbm
import numpy as np
import pytest
import pytrec_eval
import rax
import xgboost
from sklearn.metrics import ndcg_score

import jaxrank
from jaxrank.presets import PRESETS

CUTOFFS = (1, 2, 3, 5, 10, 24)


class Lists(NamedTuple):
    scores: np.ndarray
    labels: np.ndarray
    where: np.ndarray

    def each(self):
        return [(s[w], y[w]) for s, y, w in zip(*self, strict=True)]

    def padded_with_nan(self, dtype):
        return (np.where(self.where, values, np.nan).astype(dtype) for values in self[:2])


def random_lists(count=300, width=24) -> Lists:
    """Half of the lists draw from six scores, so that most of their items are tied; a tenth have no relevant item."""
    rng = np.random.default_rng(0)
    few = rng.choice(np.array([-1.5, -0.0, 0.0, 0.25, 0.5, 2.0], np.float32), (count, width))
    scores = np.where(np.arange(count)[:, None] % 2, few, rng.normal(size=(count, width)).astype(np.float32))
    labels = rng.integers(0, 5, (count, width)) * (rng.random((count, width)) < rng.choice([0, 0.1, 0.6], (count, 1)))
    where = rng.random((count, width)) < rng.uniform(0.1, 1, (count, 1))
    where[:, :2] = True  # scikit-learn rejects shorter lists
    return Lists(scores, labels, where)


LISTS = random_lists()


def sklearn_ndcg(scores, labels):
    return [ndcg_score([labels], [scores], k=k) for k in CUTOFFS]


def lightgbm_ndcg(scores, labels, cutoffs=CUTOFFS):
    quiet = {"verbose": -1, "num_threads": 1}
    params = quiet | {"objective": "lambdarank", "metric": "ndcg"} | ({"eval_at": cutoffs} if cutoffs else {})
    data = lightgbm.Dataset(
        np.zeros((len(scores), 1)), label=labels, group=[len(scores)], init_score=scores, params=quiet
    )
    return [value for _, _, value, *_ in lightgbm.Booster(params, data).eval_train()]


def xgboost_ndcg(scores, labels, metrics=tuple(f"ndcg@{k}" for k in CUTOFFS)):
    data = xgboost.DMatrix(np.zeros((len(scores), 1)), label=labels, base_margin=scores, group=[len(scores)], nthread=1)
    params = {"objective": "rank:ndcg", "base_score": 0.0, "eval_metric": list(metrics), "nthread": 1}
    return [float(entry.split(":")[1]) for entry in xgboost.Booster(params, [data]).eval(data).split()[1:]]


REFERENCES = {
    "sklearn": sklearn_ndcg,
    "torchmetrics": sklearn_ndcg,  # a translation of it to PyTorch, by its own words; its documented values are below
    "lightgbm": lightgbm_ndcg,
    "xgboost": xgboost_ndcg,
}


@functools.cache
def theirs(reference):
    return np.array([reference(*each) for each in LISTS.each()])


def ours(name, lists, dtype):
    scores, labels = lists.padded_with_nan(dtype)
    return jaxrank.ndcg_at_k(scores, labels, CUTOFFS, where=lists.where, **PRESETS[name].options)


@pytest.mark.parametrize("name", REFERENCES)
def test_preset_agrees_with_its_system(name):
    np.testing.assert_allclose(ours(name, LISTS, np.float32), theirs(REFERENCES[name]), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["sklearn", "lightgbm", "xgboost"])
def test_preset_agrees_in_float64(name, x64):
    np.testing.assert_allclose(ours(name, LISTS, np.float64), theirs(REFERENCES[name]), rtol=1e-12, atol=0)


@pytest.mark.parametrize("masked", [True, False])
def test_rax(masked):
    """In one batch, since rax pads and masks too, and compiles anew for every length."""
    where = LISTS.where | (not masked)
    where[::7] &= not masked  # wholly masked lists
    scores = LISTS.scores.copy()
    scores[:, 3::5] = -np.inf  # "treated as unranked items"
    labels = LISTS.labels.astype(np.float32)
    given = [jnp.asarray(array) for array in (scores, labels, where)]
    expected = [rax.ndcg_metric(*given[:2], where=given[2], topn=k, reduce_fn=None) for k in CUTOFFS]
    values = jaxrank.ndcg_at_k(scores, labels, CUTOFFS, where=where, **PRESETS["rax"].options)
    np.testing.assert_allclose(values, np.stack(expected, axis=-1), rtol=1e-6, atol=1e-7)


def trec_eval_case(rng):
    """Random document ids; a fifth of the judged documents are not retrieved, a fifth of the retrieved not judged."""
    shape = LISTS.scores.shape
    ids = np.array([rng.permutation(shape[1]) for _ in range(shape[0])])
    retrieved, judged = rng.random((2, *shape)) < 0.8
    retrieved[:, 0] = judged[:, 1] = True
    # pytrec_eval crashes on a query whose grades are all below -1: those of no relevant document stay at 0.
    relevant = ((LISTS.labels > 0) & judged & LISTS.where).any(axis=-1, keepdims=True)
    below = rng.integers(-2, 1, shape) * relevant
    return LISTS._replace(labels=np.where(LISTS.labels == 0, below, LISTS.labels)), ids, retrieved, judged


def trec_eval_values(lists, ids, retrieved, judged):
    run, qrels = {}, {}
    for row in range(len(ids)):
        documents = [f"d{i:02}" for i in ids[row]]
        items = list(zip(documents, lists.scores[row], lists.labels[row], lists.where[row], strict=True))
        run[str(row)] = {d: float(s) for (d, s, _, w), r in zip(items, retrieved[row], strict=True) if w and r}
        qrels[str(row)] = {d: int(y) for (d, _, y, w), j in zip(items, judged[row], strict=True) if w and j}
    values = pytrec_eval.RelevanceEvaluator(qrels, {f"ndcg_cut.{','.join(map(str, CUTOFFS))}"}).evaluate(run)
    return [[values[str(row)][f"ndcg_cut_{k}"] for k in CUTOFFS] for row in range(len(ids))]


def test_trec_eval():
    lists, ids, retrieved, judged = trec_eval_case(np.random.default_rng(1))
    preset = PRESETS["trec_eval"]
    assert preset.tie_order == "id_descending"
    order = np.argsort(-ids, axis=-1)
    scores = np.where(retrieved, lists.scores, -np.inf)
    labels = np.where(judged, lists.labels, 0)
    scores, labels, where = (np.take_along_axis(a, order, -1) for a in (scores, labels, lists.where))
    values = jaxrank.ndcg_at_k(scores.astype(preset.score_dtype), labels, CUTOFFS, where=where, **preset.options)
    np.testing.assert_allclose(values, trec_eval_values(lists, ids, retrieved, judged), rtol=1e-6, atol=1e-7)


def test_trec_eval_holds_scores_in_float32():
    evaluator = pytrec_eval.RelevanceEvaluator({"q": {"a": 1}}, {"ndcg_cut.1"})
    assert evaluator.evaluate({"q": {"a": 1 + 1e-9, "b": 1.0}})["q"]["ndcg_cut_1"] == 0.0
    assert PRESETS["trec_eval"].score_dtype == "float32"


def test_torchmetrics_documented_values():
    options = PRESETS["torchmetrics"].options
    functional = jaxrank.ndcg_at_k(np.array([0.1, 0.2, 0.3, 4, 70], np.float32), np.array([10, 0, 0, 1, 5]), **options)
    assert functional == pytest.approx(0.6957, abs=5e-5)
    scores = np.array([[0.2, 0.3, 0.5, 0], [0.1, 0.3, 0.5, 0.2]], np.float32)
    labels = np.array([[0, 0, 1, 0], [0, 1, 0, 1]])
    where = np.array([[1, 1, 1, 0], [1, 1, 1, 1]])
    module = jaxrank.ndcg_at_k(scores, labels, where=where, **options).mean()
    assert module == pytest.approx(0.8467, abs=5e-5)


def test_default_cutoffs():
    scores, labels = np.arange(100) % 17.0, np.arange(100) % 4
    xgb = PRESETS["xgboost"]
    ours = jaxrank.ndcg_at_k(scores, labels, xgb.cutoffs, **xgb.options)
    np.testing.assert_allclose(ours, xgboost_ndcg(scores, labels, ["ndcg"]), rtol=1e-6)
    lgb = PRESETS["lightgbm"]
    ours = jaxrank.ndcg_at_k(scores, labels, lgb.cutoffs, **lgb.options)
    np.testing.assert_allclose(ours, lightgbm_ndcg(scores, labels, None), rtol=1e-6)
    printed = pytrec_eval.RelevanceEvaluator({"q": {"a": 1}}, {"ndcg_cut"}).evaluate({"q": {"a": 1.0}})["q"]
    assert sorted(printed) == sorted(f"ndcg_cut_{k}" for k in PRESETS["trec_eval"].cutoffs or ())


def test_the_lists_tell_the_rules_apart():
    """A wrong preset would be noticed: each rule changes many of the values by far more than the tolerance."""
    values = {name: jax.device_get(ours(name, LISTS, np.float32)) for name in PRESETS}
    rules = {name: preset.options for name, preset in PRESETS.items()}
    for a in PRESETS:
        for b in PRESETS:
            differing = (np.abs(values[a] - values[b]) > 1e-3).mean()
            assert (differing > 0.05) == (rules[a] != rules[b]), (a, b, differing)
