"""The command line as a person uses it: figures, tables, files of every kind, and one line for each mistake."""

import json
import subprocess
import sys

import numpy as np
import pytest

from jaxrank.cli import run

QRELS = "q1 0 a 2\nq1 0 b 1\nq2 0 a 0\nq3 0 c 1\n"
RUN = "q1 Q0 b 1 3 me\nq1 Q0 a 2 2 me\nq2 Q0 a 1 1 me\nq9 Q0 a 1 1 me\n"
Q1 = (1 / np.log2(2) + 3 / np.log2(3)) / (3 / np.log2(2) + 1 / np.log2(3))
Q1_LINEAR = (1 / np.log2(2) + 2 / np.log2(3)) / (2 / np.log2(2) + 1 / np.log2(3))


@pytest.fixture
def files(tmp_path):
    for name, content in {"qrels": QRELS, "run": RUN}.items():
        (tmp_path / name).write_text(content)
    return str(tmp_path / "qrels"), str(tmp_path / "run")


@pytest.fixture
def call(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            run(["evaluate", *map(str, arguments)])
        return stop.value.code, *capsys.readouterr()

    return call


@pytest.fixture
def figures(call):
    def figures(*arguments):
        code, out, _ = call(*arguments, "--format", "json", "--per-query")
        assert code == 0
        return json.loads(out)

    return figures


@pytest.mark.parametrize(
    "options, want",
    [
        ([], {"q1": Q1, "q2": 0, "q3": 0}),
        (["--gain", "linear"], {"q1": Q1_LINEAR, "q2": 0, "q3": 0}),
        (["--empty", "1"], {"q1": Q1, "q2": 1, "q3": 0}),
        (["--empty", "0.25", "--missing", "skip"], {"q1": Q1, "q2": 0.25}),
        (["--empty", "skip"], {"q1": Q1, "q2": None, "q3": 0}),
        (["--empty", "nan"], {"q1": Q1, "q2": None, "q3": 0}),
        (["--preset", "trec_eval"], {"q1": Q1_LINEAR, "q2": 0}),
        (["--preset", "lightgbm"], {"q1": Q1, "q2": 1}),
        (["--preset", "lightgbm", "--empty", "0", "--missing", "count"], {"q1": Q1, "q2": 0, "q3": 0}),
    ],
)
def test_options(files, figures, options, want):
    answer = figures(*files, "-k", "5", *options)
    got = {query: values["ndcg@5"] for query, values in answer["per_query"].items()}
    assert got == {query: None if value is None else pytest.approx(value, abs=1e-6) for query, value in want.items()}
    counted = [value for value in want.values() if value is not None]
    assert answer["metrics"]["ndcg@5"]["mean"] == pytest.approx(np.mean(counted), abs=1e-6)
    assert answer["metrics"]["ndcg@5"]["stderr"] == pytest.approx(
        np.std(counted, ddof=1) / np.sqrt(len(counted)), abs=1e-6
    )
    assert answer["queries"] == len(counted)
    assert answer["missing"] == ["q3"]
    assert answer["unjudged"] == ["q9"]


@pytest.mark.parametrize(
    "ties, first",
    [("average", 0.5), ("stable", 0), ("best", 1), ("worst", 0)],
)
def test_ties(tmp_path, figures, ties, first):
    (tmp_path / "qrels").write_text("q 0 b 1\n")
    (tmp_path / "run").write_text("q Q0 a 1 1 me\nq Q0 b 1 1 me\n")
    answer = figures(tmp_path / "qrels", tmp_path / "run", "-k", 1, "--ties", ties)
    assert answer["per_query"]["q"]["ndcg@1"] == first


@pytest.mark.parametrize(
    "given, metrics", [([], ["ndcg@1", "ndcg@5", "ndcg@10"]), (["-k", "2,all"], ["ndcg@2", "ndcg"])]
)
def test_cutoffs(files, figures, given, metrics):
    assert list(figures(*files, *given)["metrics"]) == metrics


@pytest.mark.parametrize("qrels", ["qrels.test", "qrels.rel_level"])
@pytest.mark.parametrize("results", ["results.test", "results.trunc"])
def test_trec_eval_gives_the_same_to_four_decimals(shared_data, figures, qrels, results):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    folder = shared_data / "trec_eval_test"
    with open(folder / qrels) as judged, open(folder / results) as retrieved:
        evaluator = pytrec_eval.RelevanceEvaluator(pytrec_eval.parse_qrel(judged), {"ndcg_cut", "ndcg"})
        lines = [" ".join(line.split()[:6]) for line in retrieved]  # its parser, unlike trec_eval's, stops at words
        want = evaluator.evaluate(pytrec_eval.parse_run(lines))
    cutoffs = [metric.removeprefix("ndcg_cut_") for metric in next(iter(want.values())) if metric != "ndcg"]
    assert len(cutoffs) == 9
    answer = figures(folder / qrels, folder / results, "--preset", "trec_eval", "-k", ",".join(cutoffs), "-k", "all")
    assert set(answer["per_query"]) == set(want)
    for query, values in want.items():
        got = answer["per_query"][query]
        for cutoff in cutoffs:
            assert got[f"ndcg@{cutoff}"] == pytest.approx(values[f"ndcg_cut_{cutoff}"], abs=5e-6)
        assert got["ndcg"] == pytest.approx(values["ndcg"], abs=5e-6)


def test_judgements_of_several_judges_are_refused(shared_data, call):
    folder = shared_data / "trec_eval_test"
    code, _, err = call(folder / "qrels.123", folder / "results.test")
    assert code == 2
    assert "of query '301' for the second time (first on line" in err


def test_the_cutoffs_of_trec_eval_are_those_it_prints(shared_data, figures):
    folder = shared_data / "trec_eval_test"
    answer = figures(folder / "qrels.test", folder / "results.test", "--preset", "trec_eval")
    assert list(answer["metrics"]) == [f"ndcg@{k}" for k in (5, 10, 15, 20, 30, 100, 200, 500, 1000)]


def test_a_letor_file_and_scores(shared_data, tmp_path, figures):
    file = shared_data / "lightgbm_rank" / "rank.test"
    labels = [line.split(" ", 1)[0] for line in file.read_text().splitlines()]
    (tmp_path / "scores").write_text("\n".join(labels))
    answer = figures("--letor", file, "--scores", tmp_path / "scores", "--group", f"{file}.query", "-k", 3)
    assert answer["queries"] == 50
    assert answer["metrics"]["ndcg@3"]["mean"] == 1


def test_many_lengths_give_what_one_list_at_a_time_gives(tmp_path, figures, monkeypatch):
    from jaxrank import _evaluate_command, ndcg_at_k

    monkeypatch.setattr(_evaluate_command, "FEW_ROWS", 0)
    rng = np.random.default_rng(0)
    lists = [(rng.normal(size=n).round(1), rng.integers(0, 4, n)) for n in (2, 30, 31)]
    with open(tmp_path / "qrels", "w") as qrels, open(tmp_path / "run", "w") as retrieved:
        for query, (scores, labels) in enumerate(lists):
            qrels.writelines(f"{query} 0 {i} {label}\n" for i, label in enumerate(labels))
            retrieved.writelines(f"{query} Q0 {i} 0 {score} t\n" for i, score in enumerate(scores))
    answer = figures(tmp_path / "qrels", tmp_path / "run", "-k", 10)
    for query, (scores, labels) in enumerate(lists):
        want = float(ndcg_at_k(scores.astype(np.float32), labels, 10))
        assert answer["per_query"][str(query)]["ndcg@10"] == pytest.approx(want, abs=1e-6)


def test_tab_separated_values(files, call):
    code, out, err = call(*files, "-k", "1,5", "-q", "--format", "tsv")
    rows = [line.split("\t") for line in out.splitlines()]
    assert rows[0] == ["query", "ndcg@1", "ndcg@5"]
    assert [row[0] for row in rows[1:]] == ["q1", "q2", "q3", "all"]
    assert float(rows[1][2]) == pytest.approx(Q1, abs=1e-6)
    assert code == 0
    assert "Judged but missing from the run, counted as nothing retrieved: 1 query (q3)." in err
    assert "In the run but not judged, left out: 1 query (q9)." in err


@pytest.mark.parametrize("flag", [[], ["--per-query"]])
def test_table(files, call, flag):
    _, out, err = call(*files, "-k", "5", *flag)
    assert "NDCG of run: 3 queries" in out
    assert "ndcg@5" in out
    assert f"{Q1 / 3:.4f}" in out
    assert ("q1" in out) == bool(flag)
    assert "Settings: gain exponential; ties average; empty 0; missing count." in err


def test_queries_without_relevant_documents_are_reported_when_left_out(files, call):
    assert "Without any relevant document, left out: 1 query." in call(*files, "--empty", "skip")[2]


def test_nothing_left_to_average(tmp_path, figures):
    (tmp_path / "qrels").write_text("q 0 b 0\n")
    (tmp_path / "run").write_text("q Q0 a 1 1 me\n")
    answer = figures(tmp_path / "qrels", tmp_path / "run", "-k", 1, "--empty", "skip")
    assert answer["queries"] == 0
    assert answer["metrics"]["ndcg@1"] == {"mean": None, "stderr": None}


def test_without_files_a_generated_run_is_evaluated(call):
    code, out, err = call()
    assert code == 0
    assert "NDCG of a generated run: 20 queries" in out
    assert "No files given, so this is a small generated run" in err


MISTAKES = {
    "no such file": (["nowhere", "run"], "jaxrank: error: nowhere: No such file or directory"),
    "a folder": (["qrels", "."], "jaxrank: error: .: Is a directory"),
    "the wrong way round": (["run", "qrels"], "jaxrank: error: run:1: 6 columns"),
    "a bad line": (["qrels", "bad"], "jaxrank: error: bad:2: score 'nan' of document 'b' of query 'q1'"),
    "one file": (["qrels"], "judgements first"),
    "cutoff 0": (["qrels", "run", "-k", "0"], "'0'; expected a whole number from 1, or all"),
    "cutoff a word": (["qrels", "run", "-k", "5,ten"], "'ten'; expected a whole number"),
    "ties": (["qrels", "run", "--ties", "random"], "'random' is not one of"),
    "preset": (["qrels", "run", "--preset", "trec"], "'trec' is not one of"),
    "empty": (["qrels", "run", "--empty", "none"], "'none'; expected a number such as 1, or skip"),
    "scores alone": (["--scores", "run"], "needs --letor FILE"),
    "group alone": (["--group", "run"], "needs --letor FILE"),
    "letor alone": (["--letor", "run"], "needs --scores FILE"),
    "letor and qrels": (["qrels", "run", "--letor", "run", "--scores", "run"], "takes the place of QRELS and RUN"),
    "an unknown option": (["--cutoff", "3"], "No such option: --cutoff"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_ends_with_code_2_and_says_what_to_do(files, tmp_path, call, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "bad").write_text("q1 Q0 a 1 1 me\nq1 Q0 b 2 nan me\n")
    arguments, message = MISTAKES[case]
    code, out, err = call(*arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err


def test_it_runs_as_a_module(files, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "jaxrank", "evaluate", *files, "-k", "5", "--format", "tsv"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout.split()[-1]) == pytest.approx(Q1 / 3, abs=1e-6)
