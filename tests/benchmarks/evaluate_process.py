"""Time and peak memory of whole processes that evaluate a TREC run: ours, ir_measures, pytrec_eval.

    python tests/benchmarks/evaluate_process.py --lines 1000000 --lines 10000000 --repeats 3

Runs have 1 000 documents a query, grouped by query, in rank order; 50 documents of a query are judged, half of them
retrieved. Commands take turns; the table gives medians and the ratio to ours. With `--letor`, a LETOR file of as many
lines (150 a query, 4 features) with a file of scores is evaluated too; the others do not read such files.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.csv

DOCUMENTS, JUDGED, AT_ONCE = 1000, 50, 1000
PYTREC_EVAL = """
import sys, pytrec_eval
with open(sys.argv[1]) as qrels, open(sys.argv[2]) as run:
    evaluator = pytrec_eval.RelevanceEvaluator(pytrec_eval.parse_qrel(qrels), {"ndcg_cut_5,10"})
    values = evaluator.evaluate(pytrec_eval.parse_run(run)).values()
print(*(sum(query[name] for query in values) / len(values) for name in ("ndcg_cut_5", "ndcg_cut_10")))
"""


def generate(folder: pathlib.Path, queries: int) -> tuple[pathlib.Path, pathlib.Path]:
    rng = np.random.default_rng(0)
    qrels, run = folder / f"qrels.{queries}", folder / f"run.{queries}"
    with open(qrels, "wb") as judgements, open(run, "wb") as lines:
        for start in range(0, queries, AT_ONCE):
            names = np.arange(start, min(start + AT_ONCE, queries)) + 1
            documents = rng.integers(0, 9_000, (len(names), DOCUMENTS)) + np.arange(DOCUMENTS) * 9_000
            documents = rng.permuted(documents, axis=1)
            scores = -np.sort(-rng.normal(20, 5, documents.shape).round(4), axis=1)
            judged = rng.permuted(documents, axis=1)[:, :JUDGED]
            judged[:, JUDGED // 2 :] += 9_000_000
            ranks = np.tile(np.arange(DOCUMENTS) + 1, len(names))
            write(lines, [np.repeat(names, DOCUMENTS), "Q0", document_ids(documents), ranks, scores.ravel(), "run"])
            grades = rng.choice(4, judged.size, p=[0.6, 0.2, 0.15, 0.05])
            write(judgements, [np.repeat(names, JUDGED), "0", document_ids(judged), grades])
    return qrels, run


def generate_letor(folder: pathlib.Path, lines: int) -> tuple[pathlib.Path, pathlib.Path]:
    rng = np.random.default_rng(0)
    data, scores = folder / f"letor.{lines}", folder / f"scores.{lines}"
    with open(data, "wb") as rows, open(scores, "wb") as values:
        for start in range(0, lines, AT_ONCE * 150):
            numbers = np.arange(start, min(start + AT_ONCE * 150, lines))
            queries = joined("qid:", numbers // 150)
            columns = [joined(name, rng.random(len(numbers)).round(4)) for name in ("1:", "2:", "3:", "4:")]
            write(rows, [rng.integers(0, 5, len(numbers)), queries, *columns])
            write(values, [rng.normal(size=len(numbers)).round(6)])
    return data, scores


def joined(prefix: str, numbers: np.ndarray) -> pyarrow.Array:
    return pyarrow.compute.binary_join_element_wise(prefix, pyarrow.array(numbers).cast(pyarrow.string()), "")


def document_ids(numbers: np.ndarray) -> pyarrow.Array:
    digits = pyarrow.compute.utf8_lpad(pyarrow.array(numbers.ravel()).cast(pyarrow.string()), 8, "0")
    return pyarrow.compute.binary_join_element_wise("MARCO", digits, "_")


def write(file, columns: list) -> None:
    rows = len(columns[0])
    arrays = [pyarrow.repeat(column, rows) if isinstance(column, str) else pyarrow.array(column) for column in columns]
    options = pyarrow.csv.WriteOptions(include_header=False, delimiter=" ", quoting_style="none")
    pyarrow.csv.write_csv(pyarrow.table(arrays, [str(i) for i in range(len(arrays))]), file, options)


def measure(command: list[str]) -> tuple[float, float, float]:
    """Seconds, seconds of CPU (steadier on a busy machine), and MiB at the peak."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed with status {status}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def commands(qrels: pathlib.Path, run: pathlib.Path) -> dict[str, list[str]]:
    ours = [sys.executable, "-m", "jaxrank", "evaluate", str(qrels), str(run), "-k", "5", "-k", "10"]
    return {
        "jaxrank": ours,
        "jaxrank --preset trec_eval": [*ours, "--preset", "trec_eval"],
        "ir_measures": [sys.executable, "-m", "ir_measures", str(qrels), str(run), "nDCG@5", "nDCG@10"],
        "pytrec_eval": [sys.executable, "-c", PYTREC_EVAL, str(qrels), str(run)],
        "import jax": [sys.executable, "-c", "import jax"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, action="append")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--letor", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    rows = []
    for count in options.lines or [1_000_000, 10_000_000]:
        with tempfile.TemporaryDirectory() as folder:
            files = generate(pathlib.Path(folder), count // DOCUMENTS)
            chosen = commands(*files)
            if options.letor:
                data, scores = generate_letor(pathlib.Path(folder), count)
                letor = [sys.executable, "-m", "jaxrank", "evaluate", "--letor", str(data), "--scores", str(scores)]
                chosen["jaxrank --letor"] = letor
            taken = {name: [] for name in chosen}
            for _ in range(options.repeats):
                for name, command in chosen.items():
                    taken[name].append(measure(command))
        rows += summary(count, taken)
    print(f"{'lines':>12} {'process':<28} {'seconds':>8} {'CPU':>7} {'MiB':>7}  ratio to ours")
    for row in rows:
        print(
            f"{row['lines']:>12,} {row['process']:<28} {row['seconds']:8.2f} {row['cpu']:7.2f} {row['mib']:7.0f}  "
            + " ".join(f"{ratio:.2f}" for ratio in row["ratios"])
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


def summary(count: int, taken: dict[str, list[tuple[float, float, float]]]) -> list[dict]:
    medians = {name: [statistics.median(values) for values in zip(*runs, strict=True)] for name, runs in taken.items()}
    ours = medians["jaxrank"]
    return [
        {"lines": count, "process": name, **dict(zip(("seconds", "cpu", "mib"), values, strict=True))}
        | {"ratios": [value / mine for value, mine in zip(values, ours, strict=True)]}
        for name, values in medians.items()
    ]


if __name__ == "__main__":
    main()
