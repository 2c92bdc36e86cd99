"""Reading and batching of ranking data. Nothing here imports the metrics, or anything but NumPy until it is needed."""

from jaxrank.data._files import DataError
from jaxrank.data._lists import RankingLists
from jaxrank.data.batching import Batch, Bucket, length_buckets, padded_batches
from jaxrank.data.letor import read_letor
from jaxrank.data.trec import JudgedRun, Qrels, read_qrels, read_run

__all__ = [
    "Batch",
    "Bucket",
    "DataError",
    "JudgedRun",
    "Qrels",
    "RankingLists",
    "length_buckets",
    "padded_batches",
    "read_letor",
    "read_qrels",
    "read_run",
]
