"""Keyword sets that make `ndcg_at_k` agree with other systems, each tested against the system itself."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from jaxrank._arrays import nearest
from jaxrank._typing import DiscountFn, GainFn, TieRule
from jaxrank.discounts import log2_discount
from jaxrank.gains import exponential_gain, linear_gain


@dataclasses.dataclass(frozen=True)
class Preset:
    """How one system computes NDCG.

    Args:
      summary: how it differs from the defaults of `ndcg_at_k`, in one sentence.
      gain_fn: its gain.
      ties: its rule for tied scores.
      empty: what it gives a list without a relevant item.
      discount_fn: its discount.
      cutoffs: the cutoffs that it reports unless told otherwise; None: the whole list.
      tie_order: the order that `ties="stable"` has to find the documents of a query in.
      score_dtype: what it holds scores in: rounding to it makes ties.
      missing: the value of a judged query that the run lacks; None: left out of the mean.

    Example:
      >>> import jax.numpy as jnp
      >>> import jaxrank
      >>> sklearn = jaxrank.presets.PRESETS["sklearn"]
      >>> jaxrank.ndcg_at_k(jnp.array([0.5, 0.2, 0.1]), jnp.array([1, 3, 0]), 1, **sklearn.options)
      Array(0.33333..., dtype=float32)
    """

    summary: str
    gain_fn: GainFn
    ties: TieRule
    empty: float
    discount_fn: DiscountFn = log2_discount
    cutoffs: tuple[int, ...] | None = None
    tie_order: Literal["input", "id_descending"] = "input"
    score_dtype: Literal["float32", "float64"] = "float32"
    missing: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The keywords of `ndcg_at_k`."""
        return {name: getattr(self, name) for name in ("gain_fn", "discount_fn", "ties", "empty")}


class _Presets(dict):
    def __missing__(self, name: str) -> Preset:
        raise KeyError(f"no preset {name!r}; there are {', '.join(self)}.{nearest(name, list(self))}")


PRESETS: Mapping[str, Preset] = MappingProxyType(
    _Presets(
        {
            "trec_eval": Preset(
                "Gain is the grade itself; ties go by document id, descending, after scores are rounded to float32; "
                "queries that the run lacks are left out of the mean.",
                gain_fn=linear_gain,
                ties="stable",
                empty=0.0,
                cutoffs=(5, 10, 15, 20, 30, 100, 200, 500, 1000),
                tie_order="id_descending",
            ),
            "sklearn": Preset(
                "Gain is the grade itself; negative grades are an error there.",
                gain_fn=linear_gain,
                ties="average",
                empty=0.0,
                score_dtype="float64",
            ),
            "lightgbm": Preset(
                "Ties go by input order; a list without a relevant item counts as 1; grades are whole, 0 to 30.",
                gain_fn=exponential_gain,
                ties="stable",
                empty=1.0,
                cutoffs=(1, 2, 3, 4, 5),
                score_dtype="float64",
            ),
            "xgboost": Preset(
                "Ties go by input order; a list without a relevant item counts as 1 (as 0 in its metric `ndcg-`); "
                "lists are cut at 32 unless told otherwise; grades are whole, 0 to 31.",
                gain_fn=exponential_gain,
                ties="stable",
                empty=1.0,
                cutoffs=(32,),
            ),
            "rax": Preset(
                "Ties go by input order; a negative grade has a negative gain there.",
                gain_fn=exponential_gain,
                ties="stable",
                empty=0.0,
            ),
            "torchmetrics": Preset(
                "Gain is the grade itself, as in scikit-learn, whose rule it follows.",
                gain_fn=linear_gain,
                ties="average",
                empty=0.0,
            ),
        }
    )
)
