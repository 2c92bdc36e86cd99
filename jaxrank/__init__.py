"""Exact and differentiable NDCG@K for JAX."""

from jaxrank import presets
from jaxrank.discounts import geometric_discount, log2_discount, reciprocal_discount
from jaxrank.gains import exponential_gain, linear_gain, table_gain
from jaxrank.metrics import dcg_at_k, ideal_dcg_at_k, ndcg_at_k, ranked_ndcg_at_k

__version__ = "0.1.0"

__all__ = [
    "dcg_at_k",
    "exponential_gain",
    "geometric_discount",
    "ideal_dcg_at_k",
    "linear_gain",
    "log2_discount",
    "ndcg_at_k",
    "presets",
    "ranked_ndcg_at_k",
    "reciprocal_discount",
    "table_gain",
]
