"""`python -m jaxrank compare`: figures against the library's, a picture, and one line for each mistake."""

import json

import numpy as np
import pytest

import jaxrank
from jaxrank.cli import run
from jaxrank.significance import compare

GRADES = np.random.default_rng(1).choice(4, size=(20, 8), p=[0.55, 0.2, 0.15, 0.1])
GRADES[5] = 0
SCORES = [
    GRADES + np.random.default_rng(seed).normal(0, noise, GRADES.shape) for seed, noise in ((1, 1), (2, 2), (3, 3))
]
WHERE = np.ones(GRADES.shape, bool)


def write_run(path, scores, queries=range(20)):
    lines = [f"q{i} Q0 d{j} 0 {scores[i, j]:.6f} me" for i in queries for j in range(8)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    qrels = folder / "qrels"
    qrels.write_text("".join(f"q{i} 0 d{j} {GRADES[i, j]}\n" for i in range(20) for j in range(8)))
    return [str(qrels), *(write_run(folder / f"{name}.run", s) for name, s in zip("abc", SCORES, strict=True))]


@pytest.fixture
def call(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            run(["compare", *map(str, arguments)])
        return stop.value.code, *capsys.readouterr()

    return call


def figures(call, *arguments):
    code, out, _ = call(*arguments, "--format", "json", "--resamples", 2000)
    assert code == 0
    return json.loads(out)


def test_figures_are_those_of_the_library(call, files):
    answer = figures(call, *files, "-k", 3, "--seed", 5)
    values = [np.asarray(jaxrank.ndcg_at_k(scores.astype(np.float32), GRADES, 3)) for scores in SCORES]
    want = compare(*values, names=["a.run", "b.run", "c.run"], resamples=2000, moved=10, seed=5)
    assert (answer["metric"], answer["queries"], answer["left_out"]) == ("ndcg@3", 20, 0)
    for got, expected in zip(answer["systems"] + answer["pairs"], want.systems + want.pairs, strict=True):
        assert got == {
            k: v if isinstance(v, str) else pytest.approx(v, abs=1e-5) for k, v in expected._asdict().items()
        }
    assert [row["query"] for row in answer["moved"]] == [f"q{i}" for i in want.moved]
    assert answer == figures(call, *files, "-k", 3, "--seed", 5)


@pytest.mark.parametrize(
    "options, queries, left_out",
    [
        (["--empty", "skip"], 19, 1),
        (["--missing", "count"], 20, 0),
        (["--missing", "skip"], 18, 2),
        (["--preset", "trec_eval"], 18, 2),
    ],
)
def test_which_queries_count(call, files, tmp_path, options, queries, left_out):
    shorter = write_run(tmp_path / "short", SCORES[1], range(18))
    answer = figures(call, files[0], files[1], shorter, *options)
    assert (answer["queries"], answer["left_out"]) == (queries, left_out)


def test_table_and_plot(call, files, tmp_path):
    picture = tmp_path / "differences.svg"
    code, out, err = call(*files, "--resamples", 1000, "--plot", picture)
    assert code == 0
    assert "NDCG@10 of 3 runs on 20 queries" in out
    assert "c.run - b.run" in out
    assert "Queries that moved most" in out
    assert "corrected for 3 pairs" in err
    assert picture.read_text().startswith("<?xml")


def test_names_of_equal_files(call, files, tmp_path):
    other = write_run(tmp_path / "a.run", SCORES[1])
    answer = figures(call, files[0], files[1], other)
    assert [system["name"] for system in answer["systems"]] == [files[1], other]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["{a}"], "give two or more"),
        (["{a}", "{a}"], "the same file twice"),
        (["{a}", "{b}", "-k", "5,10"], "at one cutoff"),
        (["{a}", "{b}", "-k", "0"], "a whole number from 1"),
        (["{a}", "{b}", "--plot", "x.gif"], "ends in .png, .svg or .pdf"),
        (["{a}", "{b}", "--plot", "nowhere/x.png"], "there is no directory nowhere"),
        (["{a}", "nowhere"], "No such file"),
        (["{a}", "{qrels}"], "jaxrank: error: "),
        (["{a}", "{b}", "--preset", "lightgmb"], "lightgbm"),
    ],
)
def test_mistakes(call, files, arguments, message):
    names = dict(zip(["qrels", "a", "b"], files, strict=False))
    code, _, err = call(files[0], *(argument.format(**names) for argument in arguments))
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())


def test_too_few_queries(call, files, tmp_path):
    parts = [write_run(tmp_path / name, SCORES[0], queries) for name, queries in (("x", [0, 1]), ("y", [1, 2]))]
    code, _, err = call(files[0], *parts, "--missing", "skip")
    assert code == 2
    assert "1 judged queries in common; expected 2 or more" in err
