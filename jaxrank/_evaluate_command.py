"""`jaxrank evaluate`: the NDCG of a run against judgements, or of scores against a LETOR file."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from jaxtyping import Float

from jaxrank._evaluate_output import Format, Report, reading_bar, show
from jaxrank._process_options import Coordinator, Distributed, NumProcesses, Placement, ProcessId, joined
from jaxrank._processes import ALONE, Processes
from jaxrank.data import RankingLists, padded_batches, read_qrels
from jaxrank.data.letor import LetorOptions, MappedLists, map_letor
from jaxrank.data.synthetic import write_trec_example
from jaxrank.data.trec import MappedRun, RunOptions, map_run
from jaxrank.gains import exponential_gain, linear_gain
from jaxrank.metrics import ndcg_at_k
from jaxrank.presets import PRESETS, Preset

DEFAULTS = Preset("", gain_fn=exponential_gain, ties="average", empty=0.0, cutoffs=(1, 5, 10), score_dtype="float64")
GAINS = {"linear": linear_gain, "exponential": exponential_gain}
Gain = StrEnum("Gain", list(GAINS))
Ties = StrEnum("Ties", ["average", "stable", "best", "worst"])
Missing = StrEnum("Missing", ["count", "skip"])
PresetName = StrEnum("PresetName", list(PRESETS))
FEW_ROWS = 2_000_000  # below it another compilation costs more than padding does
MAX_SLOTS = 1 << 17  # in a batch: 100 MiB less than with 1 << 20, no slower


class Source(NamedTuple):
    """What is evaluated."""

    name: str
    queries: tuple[str, ...]
    values: Float[np.ndarray, "lists cutoffs"]
    missing: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Files(NamedTuple):
    """The files that were given."""

    qrels: Path | None
    run: Path | None
    letor: Path | None
    scores: Path | None
    group: Path | None


class Settings(NamedTuple):
    """By what rules it is evaluated; with an `empty` of NaN such queries are left out."""

    rules: Preset
    cutoffs: tuple[int | None, ...]
    count_missing: bool


def evaluate(
    qrels: Annotated[
        Path | None, typer.Argument(metavar="QRELS", help="Judgements: lines of query, iteration, document, grade.")
    ] = None,
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Ranking: lines of query, Q0, document, rank, score, tag.")
    ] = None,
    letor: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instead of QRELS and RUN: a LETOR (SVMlight) file, for its labels."),
    ] = None,
    scores: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --letor: the score of each of its rows, a line each.")
    ] = None,
    group: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --letor: the number of rows of each query, if it has no qid."),
    ] = None,
    k: Annotated[
        list[str] | None,
        typer.Option(
            "-k",
            metavar="K",
            help="Cutoff: how many results count, or all. Give it again, or 5,10, for several.",
            show_default="1, 5 and 10",
        ),
    ] = None,
    gain: Annotated[
        Gain | None, typer.Option(help="What a grade g is worth: g, or 2^g - 1.", show_default="exponential")
    ] = None,
    ties: Annotated[
        Ties | None,
        typer.Option(
            help="Order of equal scores: the mean of all, as in the file, the best or the worst by grade.",
            show_default="average",
        ),
    ] = None,
    empty: Annotated[
        str | None,
        typer.Option(
            metavar="VALUE",
            help="Value of a query without a relevant document, or skip (nan means the same) to leave it out.",
            show_default="0",
        ),
    ] = None,
    missing: Annotated[
        Missing | None,
        typer.Option(
            help="Judged queries that RUN lacks: count them as nothing retrieved, or leave them out.",
            show_default="count",
        ),
    ] = None,
    preset: Annotated[
        PresetName | None,
        typer.Option(
            metavar="NAME",
            help="Follow another system in gain, ties, empty and missing queries, and cutoffs, where no option says "
            f"otherwise: {', '.join(PRESETS)}.",
        ),
    ] = None,
    per_query: Annotated[bool, typer.Option("--per-query", "-q", help="Show the values of each query too.")] = False,
    format: Annotated[Format, typer.Option(help="How to print the figures.")] = Format.table,
    coordinator: Coordinator = None,
    num_processes: NumProcesses = None,
    process_id: ProcessId = None,
    distributed: Distributed = False,
) -> None:
    """Compute NDCG@K of a ranking.

    QRELS and RUN are TREC files, any white space between columns, gzip or not. Without files, a small generated run is
    evaluated, to show what comes out.

    Files are read in blocks, so a run grouped by query, or a LETOR file, may be longer than memory. A run whose queries
    are scattered is sorted in memory, up to 5 million lines. With several processes each parses its share of the
    queries, and process 0 prints the figures of all.

    NDCG@K adds up what the first K results of a query are worth, each discounted by 1/log2(1 + rank), and divides by
    what the best possible order would give: 1 is perfect. The figure is the mean over queries.
    """
    settings = _settings(k, gain, ties, empty, missing, preset)
    files = _checked(Files(qrels, run, letor, scores, group))
    with joined(Placement(coordinator, num_processes, process_id, distributed)) as processes:
        source = _source(files, settings, processes)
        if processes.first:
            show(_report(source, settings), per_query=per_query, format=format)


def _settings(
    k: list[str] | None, gain: Gain | None, ties: Ties | None, empty: str | None, missing: Missing | None, name: Any
) -> Settings:
    preset = PRESETS[name] if name else DEFAULTS
    rules = replace(
        preset,
        gain_fn=GAINS[gain] if gain else preset.gain_fn,
        ties=ties.value if ties else preset.ties,
        empty=preset.empty if empty is None else _empty(empty),
    )
    count = missing == "count" if missing else name is None or preset.missing is not None
    return Settings(rules, _cutoffs(k) if k else preset.cutoffs or (None,), count)


def _cutoffs(texts: list[str]) -> tuple[int | None, ...]:
    words = [word.strip() for text in texts for word in text.split(",")]
    wrong = [word for word in words if word != "all" and not (word.isdecimal() and 1 <= int(word) < 2**31)]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r}; expected a whole number from 1, or all", param_hint="-k")
    return tuple(dict.fromkeys(None if word == "all" else int(word) for word in words))


def _empty(text: str) -> float:
    try:
        return float("nan") if text == "skip" else float(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}; expected a number such as 1, or skip", param_hint="--empty") from error


def _checked(files: Files) -> Files:
    if files.letor is None and (files.scores or files.group):
        raise typer.BadParameter("needs --letor FILE", param_hint="--scores" if files.scores else "--group")
    if files.letor is not None and files.scores is None:
        raise typer.BadParameter("needs --scores FILE, with the score of each row of --letor", param_hint="--letor")
    if files.letor is not None and files.qrels is not None:
        raise typer.BadParameter("takes the place of QRELS and RUN; give one or the other", param_hint="--letor")
    if files.qrels is not None and files.run is None:
        raise typer.BadParameter("missing; give the judgements first, then the run", param_hint="RUN")
    return files


def _source(files: Files, settings: Settings, processes: Processes) -> Source:
    if files.letor and files.scores:
        return _letor(files, settings, processes)
    if files.qrels and files.run:
        return trec_source(files.qrels, files.run, settings, processes)
    with tempfile.TemporaryDirectory() as folder:
        example = trec_source(*write_trec_example(Path(folder)), settings, processes)
    note = (
        "No files given, so this is a small generated run. For yours: python -m jaxrank evaluate QRELS RUN "
        "(see python -m jaxrank evaluate --help)."
    )
    return example._replace(name="a generated run", notes=(note,))


def trec_source(qrels: Path, run: Path, settings: Settings, processes: Processes = ALONE) -> Source:
    """The values of a TREC run, which may be longer than memory."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # gives blocks back at once: 60 MiB less, no slower
    options = RunOptions(
        missing="count" if settings.count_missing else "skip",
        order="id_descending" if settings.rules.tie_order == "id_descending" else "file",
        precision="float32" if settings.rules.score_dtype == "float32" else "float64",
    )
    ndcg = _ndcg_of_blocks(settings)
    with reading_bar(processes.first) as bar:
        judgements = read_qrels(qrels, watch=bar(qrels.name))
        read = map_run(ndcg, run, judgements, options, share=processes.share, watch=bar(run.name))
    return Source(run.name, read.queries, _all_values(read, settings, processes), read.missing, read.unjudged)


def _letor(files: Files, settings: Settings, processes: Processes) -> Source:
    assert files.letor and files.scores
    options = LetorOptions(files.group, files.scores, features=False)
    ndcg = _ndcg_of_blocks(settings)
    with reading_bar(processes.first) as bar:
        read = map_letor(ndcg, files.letor, options, share=processes.share, watch=bar(files.letor.name))
    return Source(files.scores.name, read.queries, _all_values(read, settings, processes))


def _ndcg_of_blocks(settings: Settings) -> Callable[[RankingLists], Float[np.ndarray, "lists cutoffs"]]:
    """NDCG of each list at each cutoff, a padded batch at a time; all blocks share the batches' shapes."""
    shapes: dict[int, int] = {}
    rows = 0

    def ndcg(lists: RankingLists) -> Float[np.ndarray, "lists cutoffs"]:
        nonlocal rows
        rows += len(lists.labels)
        values = np.zeros((len(lists), len(settings.cutoffs)), np.float32)
        max_padding = 0.6 if rows < FEW_ROWS else 0.12
        for batch in padded_batches(lists, max_slots=MAX_SLOTS, max_padding=max_padding, shapes=shapes):
            ks = tuple(batch.where.shape[1] if k is None else k for k in settings.cutoffs)
            ndcg = ndcg_at_k(batch.scores, batch.labels, ks, where=batch.where, **settings.rules.options)
            real = batch.lists >= 0
            values[batch.lists[real]] = np.asarray(ndcg)[real]
        return values

    return ndcg


def _all_values(
    read: MappedRun | MappedLists, settings: Settings, processes: Processes
) -> Float[np.ndarray, "lists cutoffs"]:
    processes.check_same("queries", read.queries)
    values = np.zeros((len(read.queries), len(settings.cutoffs)), np.float32)
    if read.parts:
        values[read.owned] = np.concatenate(read.parts)
    return processes.total(values)


def _report(source: Source, settings: Settings) -> Report:
    rules = settings.rules
    return Report(
        name=source.name,
        metrics=tuple("ndcg" if k is None else f"ndcg@{k}" for k in settings.cutoffs),
        queries=source.queries,
        values=source.values,
        settings={
            "gain": next((name for name, function in GAINS.items() if function is rules.gain_fn), str(rules.gain_fn)),
            "ties": rules.ties,
            "empty": "skip" if np.isnan(rules.empty) else float(rules.empty),
            "missing": "count" if settings.count_missing else "skip",
        },
        missing=source.missing,
        unjudged=source.unjudged,
        notes=source.notes,
    )
