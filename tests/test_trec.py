"""TREC files: what is read, against a reader of one line at a time, and what is refused."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrank.data import DataError, read_qrels, read_run, trec
from jaxrank.data import _tables as tables

QRELS = """q1 0 d1 2
q1 0 d2 0
q1 0 d3 1
q2 0 d1 1
q3 0 d9 -1
"""
RUN = """q1 Q0 d2 1 3.5 me
q1 Q0 d1 2 2.5 me
q1 Q0 d7 3 -1e-3 me
q2 Q0 d1 1 1 me
q4 Q0 d1 1 1 me
"""
LISTS = {"q1": [(3.5, 0), (2.5, 2), (-1e-3, 0), (-np.inf, 1)], "q2": [(1, 1)]}
MISSING = {"q3": []}


@pytest.fixture
def files(tmp_path):
    def write(run=RUN, qrels=QRELS, pack=False):
        paths = tmp_path / "qrels", tmp_path / "run"
        for path, content in zip(paths, (qrels, run), strict=True):
            content = content if isinstance(content, bytes) else content.encode()
            path.write_bytes(gzip.compress(content) if pack else content)
        return paths

    return write


def as_dict(lists):
    bounds = zip(lists.queries, lists.offsets, lists.offsets[1:], strict=False)
    rows = list(zip(lists.scores.tolist(), lists.labels.tolist(), strict=True))
    return {query: rows[start:stop] for query, start, stop in bounds}


def expected(lists):
    return {query: [(float(np.float32(score)), label) for score, label in rows] for query, rows in lists.items()}


def read(paths, **options):
    return read_run(paths[1], read_qrels(paths[0]), **options)


FORMS = {
    "plain": lambda text: text,
    "tabs": lambda text: text.replace(" ", "\t"),
    "wide": lambda text: text.replace(" ", " \t  "),
    "edges": lambda text: "".join(f"  {line} \n" for line in text.splitlines()),
    "leading space": lambda text: "".join(f" {line}\n" for line in text.splitlines()),
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "blank lines": lambda text: "\n \n" + text.replace("\n", "\n\n \t\n"),
    "no newline at the end": lambda text: text.rstrip("\n"),
    "byte order mark": lambda text: "\ufeff" + text,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("block", [1, 50, 2 << 20])
def test_white_space_gzip_and_block_size_do_not_matter(files, monkeypatch, form, pack, block):
    monkeypatch.setattr(tables, "BLOCK_BYTES", block * 4)
    run = read(files(FORMS[form](RUN), FORMS[form](QRELS), pack))
    assert as_dict(run.lists) == expected(LISTS | MISSING)
    assert run.missing == ("q3",)
    assert run.unjudged == ("q4",)


RUN_FORMS = {
    "words after the tag": RUN.replace("2.5 me", "2.5 me and more words"),
    "ranks from 0": RUN.replace(" 1 3.5", " 0 3.5").replace(" 2 2.5", " 1 2.5"),
    "ranks that are not numbers": RUN.replace(" 1 3.5", " - 3.5"),
    "no ranks": "".join(" ".join(np.delete(line.split(), 3)) + "\n" for line in RUN.splitlines()),
    "numeric tag": RUN.replace(" me", " 7"),
    "plus signs": RUN.replace(" 3.5", " +3.5"),
    "quotes are letters": RUN.replace("d7", '"d7'),
    "scattered": "".join(RUN.splitlines(keepends=True)[i] for i in (0, 3, 1, 4, 2)),
}


@pytest.mark.parametrize("form", RUN_FORMS)
@pytest.mark.parametrize("block", [16, 2 << 20])
def test_forms_of_a_run(files, monkeypatch, form, block):
    monkeypatch.setattr(tables, "BLOCK_BYTES", block)
    assert as_dict(read(files(RUN_FORMS[form])).lists) == expected(LISTS | MISSING)


def test_grades_may_be_fractions_and_queries_need_not_be_grouped(files):
    qrels = "b 0 d1 0.5\na 0 d1 1e-1\nb 0 d2 -2\n"
    judgements = read_qrels(files(qrels=qrels)[0])
    assert {query: grades.tolist() for query, grades in judgements.grades.items()} == {
        "b": [0.5, -2.0],
        "a": [pytest.approx(0.1)],
    }


def test_missing_queries_count_or_not(files):
    assert read(files(), missing="skip").lists.queries == ("q1", "q2")
    assert read(files(), missing="count").lists.queries == ("q1", "q2", "q3")


def test_a_query_without_a_run_is_a_list_of_what_was_relevant(files):
    run = read(files("q2 Q0 d1 1 1 me\n"))
    assert as_dict(run.lists)["q1"] == [(-np.inf, 2), (-np.inf, 1)]


def test_descending_order_is_that_of_bytes(files):
    documents = ["b", "B", "é", "10", "9", "a10", "a9", ""]
    lines = "".join(f"q1 Q0 x{document} 1 {i} me\n" for i, document in enumerate(documents))
    run = read(files(lines), order="id_descending", missing="skip")
    by_bytes = sorted(range(len(documents)), key=lambda i: documents[i].encode(), reverse=True)
    assert run.lists.scores.tolist()[: len(documents)] == by_bytes


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_scores_that_float32_would_tie_keep_their_order(files, grouped, precision):
    scores = {"d1": "20.00000001", "d2": "20.00000002", "d7": "20.00000001", "d8": "-inf"}
    lines = [f"q1 Q0 {document} 1 {score} me\n" for document, score in scores.items()]
    lines.insert(4 if grouped else 2, "q2 Q0 d1 1 0.5 me\n")
    lists = read(files("".join(lines)), precision=precision).lists
    exact = [-1, 0, -1, -np.inf, -np.inf, 0.5]
    assert lists.scores.tolist() == (exact if precision == "float64" else [20, 20, 20, *exact[3:]])


def test_an_infinite_score_is_kept(files):
    assert as_dict(read(files(RUN.replace("2.5", "-inf").replace("3.5", "inf"))).lists)["q1"][:2] == [
        (np.inf, 0),
        (-np.inf, 2),
    ]


BAD_RUNS = {
    "too few columns": (RUN.replace(" 2.5 me", ""), ":2: 4 columns in 'q1 Q0 d1 2'; expected 6 columns"),
    "no tag on one line": (RUN.replace("2.5 me", "2.5"), ":2: 5 columns"),
    "no number": (RUN.replace("2.5", "high"), ":2: score 'high' of document 'd1' of query 'q1'; expected a number"),
    "half a number": (RUN.replace("2.5", "2.5x"), ":2: score '2.5x'"),
    "underscore": (RUN.replace("2.5", "2_5"), ":2: score '2_5'"),
    "nan": (RUN.replace("2.5", "nan"), ":2: score 'nan' of document 'd1' of query 'q1'; expected a number"),
    "beyond float32": (RUN.replace("2.5", "1e39"), ":2: score '1e39'"),
    "beyond float64": (RUN.replace("2.5", "1e999"), ":2: score '1e999'"),
    "a heading": ("query q0 doc rank score tag\n" + RUN, ":1: score 'score'"),
    "blank lines are counted": ("\n\n" + RUN.replace("2.5", "x"), ":4: score 'x'"),
    "not UTF-8": (RUN.encode().replace(b"d1", b"d\xff", 1), ":2: bytes that are not UTF-8"),
    "duplicate": (
        RUN + "q4 Q0 d1 2 3 me\n",
        ":6: document 'd1' of query 'q4' for the second time (first on line 5); expected each document once",
    ),
    "duplicate of a scattered query": (RUN + "q1 Q0 d1 2 3 me\n", ":6: document 'd1' of query 'q1'"),
    "rank or tag missing": ("q1 Q0 d1 1 0.5\n", ":1: 5 columns, the last a number"),
    "words in a run without ranks": ("q1 Q0 d1 0.5 me\nq1 Q0 d2 0.5 me you\n", ":2: 6 columns"),
    "empty": ("", ": no lines; expected 6 columns: query Q0 document rank score tag"),
    "only blank": (" \n\n", ": no lines"),
    "no query in common": (
        "x Q0 d1 1 1 me\n",
        ": no query of this run is judged (queries of the run: x; of the qrels: q1",
    ),
}


@pytest.mark.parametrize("case", BAD_RUNS)
@pytest.mark.parametrize("block", [16, 2 << 20])
@pytest.mark.parametrize("pack", [False, True])
def test_bad_runs_are_refused(files, monkeypatch, case, block, pack):
    monkeypatch.setattr(tables, "BLOCK_BYTES", block)
    content, message = BAD_RUNS[case]
    paths = files(content, pack=pack)
    with pytest.raises(DataError) as error:
        read(paths)
    assert str(error.value).startswith(f"{paths[1]}{message}")


BAD_QRELS = {
    "too few columns": (QRELS.replace("q1 0 d3 1", "q1 d3 1"), ":3: 3 columns in 'q1 d3 1'; expected 4 columns"),
    "too many columns": (QRELS.replace("q1 0 d3 1", "q1 0 d3 1 x"), ":3: 5 columns"),
    "no number": (
        QRELS.replace("d3 1", "d3 yes"),
        ":3: grade 'yes' of document 'd3' of query 'q1'; expected a finite number",
    ),
    "infinite": (QRELS.replace("d3 1", "d3 inf"), ":3: grade 'inf'"),
    "duplicate": (QRELS + "q1 0 d3 0\n", ":6: document 'd3' of query 'q1' for the second time (first on line 3)"),
    "a run": (RUN, ":1: 6 columns"),
}


@pytest.mark.parametrize("case", BAD_QRELS)
def test_bad_qrels_are_refused(files, case):
    content, message = BAD_QRELS[case]
    paths = files(qrels=content)
    with pytest.raises(DataError) as error:
        read_qrels(paths[0])
    assert str(error.value).startswith(f"{paths[0]}{message}")


def test_a_line_longer_than_a_block_is_read(files, monkeypatch):
    monkeypatch.setattr(tables, "PARSE_BYTES", 16)
    monkeypatch.setattr(tables, "BLOCK_BYTES", 16)
    assert as_dict(read(files(RUN.replace("me", "m" * 100))).lists) == expected(LISTS | MISSING)


def test_a_damaged_gzip_file_is_refused(files):
    path = files(RUN * 1000, pack=True)[1]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="damaged gzip file"):
        list(tables.read_rows(path, trec.RUN))


def test_scattered_queries_of_a_long_run_are_refused_with_a_way_out(files, monkeypatch):
    monkeypatch.setattr(trec, "SCATTERED_LINES", 4)
    with pytest.raises(DataError, match=r"more than 4 lines .* sort -s -k1,1 "):
        read(files(RUN_FORMS["scattered"]))


def naive(qrels, run):
    """One line at a time, into dictionaries."""
    grades, lists = {}, {}
    for query, document, grade in qrels:
        grades.setdefault(query, {})[document] = grade
    for query, document, score in run:
        if query in grades:
            lists.setdefault(query, {})[document] = score
    return {
        query: [(score, grades[query].get(document, 0)) for document, score in rows.items()]
        + [(-np.inf, grade) for document, grade in grades[query].items() if document not in rows and grade > 0]
        for query, rows in lists.items()
    }


pairs = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12)), unique=True, min_size=1, max_size=30)


@given(pairs, pairs, st.integers(4, 200), st.booleans(), st.data())
def test_the_join_is_that_of_dictionaries(tmp_path_factory, judged, retrieved, block, grouped, data):
    folder = tmp_path_factory.mktemp("trec")
    if grouped:
        retrieved = sorted(retrieved, key=lambda pair: pair[0])
    qrels = [(query, f"d{document}", data.draw(st.integers(-1, 3))) for query, document in judged]
    run = [(query, f"d{document}", data.draw(st.integers(-5, 5))) for query, document in retrieved]
    (folder / "qrels").write_text("".join(f"{q} 0 {d} {g}\n" for q, d, g in qrels))
    (folder / "run").write_text("".join(f"{q} Q0 {d} 0 {s} t\n" for q, d, s in run))
    want = naive(qrels, run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "BLOCK_BYTES", block)
        if want:
            got = read((folder / "qrels", folder / "run"), missing="skip")
            assert as_dict(got.lists) == want
            assert list(got.lists.queries) == list(want)
            assert set(got.missing) == {query for query, _ in judged} - {query for query, _ in retrieved}
        else:
            with pytest.raises(DataError, match="no query of this run is judged"):
                read((folder / "qrels", folder / "run"))


def test_real_files(shared_data):
    folder = shared_data / "trec_eval_test"
    qrels = read_qrels(folder / "qrels.rel_level")
    assert sum(map(len, qrels.grades.values())) == 3681
    whole = read_run(folder / "results.test", qrels)
    assert sum(np.isfinite(whole.lists.scores)) == 1500
    cut = read_run(folder / "results.trunc", qrels)
    assert sum(np.isfinite(cut.lists.scores)) == 584
    assert cut.missing == ("302",)
