"""An unknown keyword is refused with the one that was meant: a slip, or another library's word for it."""

import functools
import inspect
from collections.abc import Callable
from typing import TypeVar, cast

from jaxrank._arrays import nearest

# Other libraries' words for our keywords.
SYNONYMS = {
    "k": ("topn", "top_k", "topk", "at", "K", "n", "cutoff", "k_values"),
    "where": ("mask", "masks", "padding_mask", "valid"),
    "scores": ("preds", "y_score", "y_pred", "predictions", "logits"),
    "labels": ("target", "targets", "y_true", "relevance"),
    "gain_fn": ("gain", "gains", "label_gain"),
    "discount_fn": ("discount", "rank_discount_fn"),
    "temperature": ("tau", "temp", "alpha"),
    "ties": ("ignore_ties", "tie_breaking"),
    "empty": ("empty_target_action", "zero_division"),
    "axis": ("dim",),
    "keepdims": ("keepdim",),
    "weights": ("sample_weight", "weight"),
    "reduce_fn": ("reduction", "reduce"),
    "segment_ids": ("segments", "indexes", "group", "groups", "qid"),
    "num_segments": ("num_queries", "num_groups", "length"),
    "exclude": ("seen", "filter_items", "exclusions"),
}
MEANT = {synonym: name for name, synonyms in SYNONYMS.items() for synonym in synonyms}

Function = TypeVar("Function", bound=Callable)


def named_keywords(function: Function) -> Function:
    """Refuses an unknown keyword with the one that was meant, be it a slip or another library's word."""
    names = dict.fromkeys(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args, **kwargs):
        if kwargs.keys() <= names.keys():
            return function(*args, **kwargs)
        wrong = next(name for name in kwargs if name not in names)
        meant = MEANT.get(wrong)
        hint = f" Did you mean {meant!r}?" if meant in names else nearest(wrong, list(names))
        raise TypeError(f"{function.__name__}() has no keyword {wrong!r}.{hint} It takes {', '.join(names)}.")

    return cast(Function, checked)
