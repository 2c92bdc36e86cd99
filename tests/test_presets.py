"""The shape of the presets, and the figures by which they differ. `test_peers` holds them against the systems."""

import dataclasses

import numpy as np
import pytest

import jaxrank
from jaxrank.presets import PRESETS, Preset


def test_names():
    assert list(PRESETS) == ["trec_eval", "sklearn", "lightgbm", "xgboost", "rax", "torchmetrics"]


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_options_are_keywords_of_ndcg_at_k(preset):
    assert set(preset.options) == {"gain_fn", "discount_fn", "ties", "empty"}
    value = jaxrank.ndcg_at_k(np.array([3.0, 2.0, 1.0]), np.array([2, 1, 0]), preset.cutoffs, **preset.options)
    assert (value == 1.0).all()


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_fields(preset):
    assert preset.summary.endswith(".") and "\n" not in preset.summary
    assert preset.cutoffs is None or list(preset.cutoffs) == sorted(set(preset.cutoffs))
    assert preset.tie_order == "input" or preset.ties == "stable"
    assert np.dtype(preset.score_dtype).kind == "f"


# Items 2 and 3 are tied; the list's NDCG@2 is DCG / (gain(3) + gain(1) / log2(3)).
DISCOUNT = 1 / np.log2(3)
EXPECTED = {
    "trec_eval": (1 + 0 * DISCOUNT) / (3 + DISCOUNT),
    "sklearn": (1 + 1.5 * DISCOUNT) / (3 + DISCOUNT),
    "lightgbm": (1 + 0 * DISCOUNT) / (7 + DISCOUNT),
    "xgboost": (1 + 0 * DISCOUNT) / (7 + DISCOUNT),
    "rax": (1 + 0 * DISCOUNT) / (7 + DISCOUNT),
    "torchmetrics": (1 + 1.5 * DISCOUNT) / (3 + DISCOUNT),
}


@pytest.mark.parametrize("name", PRESETS)
def test_gain_and_ties(name):
    value = jaxrank.ndcg_at_k(np.array([2.0, 1.0, 1.0]), np.array([1, 0, 3]), 2, **PRESETS[name].options)
    assert value == pytest.approx(EXPECTED[name], rel=1e-6)


@pytest.mark.parametrize("name", PRESETS)
def test_no_relevant_item(name):
    value = jaxrank.ndcg_at_k(np.array([2.0, 1.0]), np.array([0, 0]), **PRESETS[name].options)
    assert value == {"lightgbm": 1.0, "xgboost": 1.0}.get(name, 0.0)


def test_presets_do_not_change():
    with pytest.raises(TypeError):
        PRESETS["sklearn"] = PRESETS["rax"]  # pyright: ignore[reportIndexIssue]
    with pytest.raises(dataclasses.FrozenInstanceError):
        PRESETS["sklearn"].empty = 1.0  # pyright: ignore[reportAttributeAccessIssue]
    minus = dataclasses.replace(PRESETS["xgboost"], empty=0.0)  # its metric `ndcg-`
    assert isinstance(minus, Preset) and minus.options["empty"] == 0.0
