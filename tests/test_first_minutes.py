"""What a new user meets: any kind of array, mistakes answered with what to do, a light import."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxrank

SCORES, LABELS = [0.2, 0.9, 0.1], [1, 2, 0]


@pytest.mark.parametrize(
    "kind",
    [
        list,
        tuple,
        np.array,
        jnp.array,
        pd.Series,
        lambda x: pd.Series(x, dtype="float32"),
        lambda x: pd.Series(x).convert_dtypes(),
        lambda x: pd.DataFrame({"x": x})["x"],
    ],
)
def test_arrays_of_any_kind(kind):
    assert jaxrank.ndcg_at_k(kind(SCORES), kind(LABELS), 2) == 1
    assert jaxrank.smooth_ndcg_at_k(kind(SCORES), kind(LABELS), 2, temperature=1e-3) == pytest.approx(1)


def test_a_missing_value_gives_no_number():
    labels = pd.Series([1, 2, None], dtype="Int64")
    assert np.isnan(jaxrank.ndcg_at_k(SCORES, labels))
    assert np.isnan(jaxrank.ndcg_at_k(pd.Series([0.1, None, 0.3]), LABELS))


@pytest.mark.parametrize(
    "arguments, options, error, message",
    [
        ((2, SCORES, LABELS), {}, TypeError, "Arguments are scores, labels, k"),
        ((SCORES, LABELS, np.array([True, True, False])), {}, TypeError, "a mask goes by name, where="),
        ((SCORES, LABELS, "10"), {}, TypeError, "got '10' of type str"),
        ((SCORES, LABELS, 10.0), {}, TypeError, "got 10.0 of type float"),
        ((SCORES, LABELS, 0), {}, ValueError, "Use None for the whole list"),
        ((SCORES, None), {}, TypeError, "labels must be an array of real numbers; got None"),
        ((SCORES, ["a", "b", "c"]), {}, TypeError, "labels must hold real numbers; got dtype <U1"),
        ((pd.Series(["a", "b", "c"]), LABELS), {}, TypeError, "got Series of str"),
        (
            (np.array(SCORES, object), LABELS),
            {},
            TypeError,
            "(dtype object). If they are numbers, give .astype",
        ),
        (({"d1": 0.5}, LABELS), {}, TypeError, "got dict"),
        (([SCORES, [0.5]], [LABELS, [1]]), {}, TypeError, "Ragged lists must be padded"),
        ((np.array(["2026-01-01"], "M8[D]"), [1]), {}, TypeError, "real numbers"),
        ((np.zeros((2, 3)), np.zeros((3, 2))), {}, ValueError, r"scores (2, 3), labels (3, 2)"),
        ((SCORES, LABELS), {"empty": "skip"}, TypeError, "empty must be a number; got 'skip'"),
        ((SCORES, LABELS), {"ties": "averge"}, ValueError, "Did you mean 'average'?"),
        ((SCORES, LABELS), {"topn": 2}, TypeError, "has no keyword 'topn'. Did you mean 'k'?"),
        ((SCORES, LABELS), {"K": 2}, TypeError, "Did you mean 'k'?"),
        ((SCORES, LABELS), {"mask": [1, 1, 0]}, TypeError, "Did you mean 'where'?"),
        ((), {"y_true": LABELS, "y_score": SCORES}, TypeError, "Did you mean 'labels'?"),
        ((SCORES, LABELS), {"keepdim": True}, TypeError, "Did you mean 'keepdims'?"),
        ((SCORES, LABELS), {"gian_fn": None}, TypeError, "Did you mean 'gain_fn'?"),
        ((SCORES, LABELS), {"zzz": 1}, TypeError, "has no keyword 'zzz'. It takes scores, labels, k, where"),
    ],
)
def test_mistakes(arguments, options, error, message):
    with pytest.raises(error) as raised:
        jaxrank.ndcg_at_k(*arguments, **options)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: jaxrank.smooth_ndcg_at_k(SCORES, LABELS, relaxation="soft_sort"), "jaxrank.soft_sort"),
        (lambda: jaxrank.smooth_ndcg_at_k(SCORES, LABELS, tau=1.0), "Did you mean 'temperature'?"),
        (lambda: jaxrank.smooth_ndcg_loss(SCORES, LABELS, reduction=None), "Did you mean 'reduce_fn'?"),
        (lambda: jaxrank.neural_sort(SCORES, topk=1), "Did you mean 'k'?"),
        (lambda: jaxrank.gumbel_perturb(jax.random.key(0), [1, 2], num_samples=1), "floating point"),
    ],
)
def test_mistakes_with_the_surrogates(call, message):
    with pytest.raises(TypeError) as raised:
        call()
    assert message in str(raised.value)


def test_mistakes_without_type_checks():
    """What the tests' type checker would refuse first is answered by the library alone."""
    code = """
import jaxrank
def call(**options):
    try:
        jaxrank.smooth_ndcg_loss([0.2, 0.9, 0.1], [1, 2, 0], **options)
    except TypeError as error:
        print(error)
call(gain_fn="linear")
call(gain_fn=[0, 1, 3])
call(discount_fn="log2")
call(reduce_fn="mean")
call(axis="rows")
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    wanted = ["jaxrank.linear_gain", "jaxrank.table_gain(values)", "jaxrank.log2_discount", "jnp.mean", "an int"]
    assert len(out) == len(wanted)
    for line, part in zip(out, wanted):
        assert part in line


def test_unknown_preset():
    with pytest.raises(KeyError, match="Did you mean 'lightgbm'"):
        jaxrank.presets.PRESETS["lightgmb"]
    assert jaxrank.presets.PRESETS.get("lightgmb") is None
    assert "lightgmb" not in jaxrank.presets.PRESETS


@pytest.mark.parametrize(
    "package, code, line",
    [
        ("scipy", "from jaxrank.significance import compare; compare([1, 2], [1, 3])", "jaxrank[cli]"),
        ("matplotlib", "from jaxrank.plots import query_differences as f; f([[1], [2]], names='ab')", "jaxrank[plots]"),
        ("optax", "from jaxrank.training import default_optimiser as f; f.__wrapped__()", "jaxrank[train]"),
    ],
)
def test_missing_extras(monkeypatch, package, code, line):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError) as raised:
        exec(code, {})
    assert f'pip install "{line}"' in str(raised.value)


def test_import_is_light(tmp_path):
    """Below 0.15 s beyond jax's own, and nothing of an extra."""
    code = """
import sys, time
import jax, jax.numpy
start = time.process_time()
import jaxrank
spent = time.process_time() - start
extras = {"optax", "scipy", "sklearn", "pandas", "pyarrow", "matplotlib", "typer", "rich", "safetensors"}
print(spent, *(extras & set(sys.modules)))
"""
    # An interpreter of its own, and the better of two: the first may have to compile the modules, and keeps them.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    command = [sys.executable, "-c", code]
    runs = [
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()
        for _ in range(2)
    ]
    assert min(float(spent) for spent, *_ in runs) < 0.15
    assert not any(loaded for _, *loaded in runs)
