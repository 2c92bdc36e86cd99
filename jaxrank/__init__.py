"""Exact and differentiable NDCG@K for JAX."""

from jaxrank import presets
from jaxrank.discounts import geometric_discount, log2_discount, reciprocal_discount
from jaxrank.gains import exponential_gain, linear_gain, table_gain
from jaxrank.losses import approx_ndcg_loss, gumbel_perturb, lambda_ndcg_loss, smooth_ndcg_loss
from jaxrank.metrics import dcg_at_k, ideal_dcg_at_k, ndcg_at_k, ranked_ndcg_at_k
from jaxrank.relaxations import neural_sort, soft_ranks, soft_sort
from jaxrank.retrieval import retrieval_ndcg_at_k, retrieve_top_k
from jaxrank.segments import dense_segments, segment_ndcg_at_k, segment_smooth_ndcg_at_k
from jaxrank.streaming import RankingMean
from jaxrank.surrogates import approx_ndcg_at_k, smooth_dcg_at_k, smooth_ndcg_at_k

__version__ = "0.1.0"

__all__ = [
    "RankingMean",
    "approx_ndcg_at_k",
    "approx_ndcg_loss",
    "dcg_at_k",
    "dense_segments",
    "exponential_gain",
    "geometric_discount",
    "gumbel_perturb",
    "ideal_dcg_at_k",
    "lambda_ndcg_loss",
    "linear_gain",
    "log2_discount",
    "ndcg_at_k",
    "neural_sort",
    "presets",
    "ranked_ndcg_at_k",
    "reciprocal_discount",
    "retrieval_ndcg_at_k",
    "retrieve_top_k",
    "segment_ndcg_at_k",
    "segment_smooth_ndcg_at_k",
    "smooth_dcg_at_k",
    "smooth_ndcg_at_k",
    "smooth_ndcg_loss",
    "soft_ranks",
    "soft_sort",
    "table_gain",
]
