"""LETOR files: what is read, against one line at a time, and what is refused."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrank.data import DataError, read_letor

LINES = """2 qid:7 1:0.5 3:1.25
0 qid:7 2:-1
1 qid:9 1:1e-2 # doc 12: a comment
"""
LABELS, LENGTHS = [2, 0, 1], [2, 1]
FEATURES = np.array([[0.5, 0, 1.25], [0, -1, 0], [1e-2, 0, 0]], np.float32)


@pytest.fixture
def write(tmp_path):
    def write(content, name="data", pack=False):
        path = tmp_path / name
        content = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(gzip.compress(content) if pack else content)
        return path

    return write


def without_qid(text):
    return text.replace("qid:7 ", "").replace("qid:9 ", "")


FORMS = {
    "plain": LINES,
    "tabs": LINES.replace(" ", "\t"),
    "crlf": LINES.replace("\n", "\r\n"),
    "blank lines and comments": "# heading\n\n" + LINES.replace("\n", "\n\n"),
    "no newline at the end": LINES.rstrip("\n"),
    "fractional labels": LINES.replace("2 qid", "2.0 qid"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pack", [False, True])
def test_forms(write, form, pack):
    lists = read_letor(write(FORMS[form], pack=pack))
    assert lists.queries == ("7", "9")
    assert (lists.lengths.tolist(), lists.labels.tolist()) == (LENGTHS, LABELS)
    np.testing.assert_array_equal(lists.features, FEATURES)


@pytest.mark.parametrize("name", ["data.query", "data.group", "sizes"])
@pytest.mark.parametrize("pack", [False, True])
def test_group_sizes_in_a_file_of_their_own(write, name, pack):
    path, group = write(without_qid(LINES), "data.gz" if pack else "data", pack), write("2\n1\n", name)
    lists = read_letor(path, group=group if name == "sizes" else None)
    assert (lists.queries, lists.lengths.tolist()) == (("1", "2"), LENGTHS)
    np.testing.assert_array_equal(lists.features, FEATURES)


def test_a_group_may_be_empty(write):
    assert read_letor(write(without_qid(LINES)), group=write("2\n0\n1\n", "g")).lengths.tolist() == [2, 0, 1]


def test_sizes_and_qid_that_agree_are_fine(write):
    assert read_letor(write(LINES), group=write("2\n1\n", "g")).lengths.tolist() == LENGTHS


def test_scores_in_a_file_of_their_own(write):
    lists = read_letor(write(LINES), scores=write("0.5\n-inf\n\n1e-3\n", "scores"), features=False)
    np.testing.assert_array_equal(lists.scores, np.float32([0.5, -np.inf, 1e-3]))
    assert lists.features is None


@pytest.mark.parametrize(
    "options, first", [({"n_features": 5}, [0.5, 0, 1.25, 0, 0]), ({"zero_based": True}, [0, 0.5, 0, 1.25])]
)
def test_the_number_of_features(write, options, first):
    np.testing.assert_array_equal(read_letor(write(LINES), **options).features[0], np.float32(first))


BAD_LINES = {
    "no label": (LINES.replace("0 qid", "qid"), {}, ":2: label 'qid:7'; expected a finite number"),
    "label no number": (LINES.replace("0 qid", "bad qid"), {}, ":2: label 'bad'"),
    "label nan": (LINES.replace("0 qid", "nan qid"), {}, ":2: label 'nan'"),
    "label infinite": (LINES.replace("0 qid", "inf qid"), {}, ":2: label 'inf'"),
    "no qid on one line": (
        LINES.replace("0 qid:7", "0"),
        {},
        ":2: no qid, unlike the lines before; expected label qid:",
    ),
    "qid on one line": (without_qid(LINES).replace("-1", "-1\n0 qid:7 1:1"), {}, ":3: a qid, unlike"),
    "qid no number": (LINES.replace("0 qid:7", "0 qid:a"), {}, ":2: qid 'a'; expected a whole number"),
    "qid too large": (LINES.replace("0 qid:7", f"0 qid:{10**20}"), {}, ":2: qid '1000"),
    "qid after the features": (LINES.replace("0 qid:7 2:-1", "0 2:-1 qid:7"), {}, ":2: no qid"),
    "no colon": (LINES.replace("2:-1", "2"), {}, ":2: '2'; expected index:value"),
    "index no number": (LINES.replace("2:-1", "x:1"), {}, ":2: feature index 'x'"),
    "value no number": (LINES.replace("2:-1", "2:x"), {}, ":2: value of feature 2 'x'"),
    "value nan": (LINES.replace("2:-1", "2:nan"), {}, ":2: value of feature 2 'nan'"),
    "value beyond float32": (LINES.replace("2:-1", "2:1e50"), {}, ":2: value of feature 2 '1e50'"),
    "index twice": (LINES.replace("2:-1", "2:1 2:1"), {}, ":2: feature index 2; expected one above 2"),
    "index descends": (LINES.replace("2:-1", "2:1 1:1"), {}, ":2: feature index 1; expected one above 2"),
    "index 0": (LINES.replace("2:-1", "0:1"), {}, ":2: feature index 0; expected one above 0 (pass zero_based=True"),
    "index too large": (LINES, {"n_features": 2}, ":1: feature index 3; expected at most 2, as in other files"),
    "index absurd": (LINES.replace("2:-1", "2000000000:1"), {}, ": feature index 2000000000; expected at most 100000"),
    "scattered": (LINES + "1 qid:7 1:1\n", {}, ":4: query 7 again, after other queries; expected its lines together"),
    "not UTF-8": (LINES.encode().replace(b"-1", b"\xff"), {}, ":2: bytes that are not UTF-8"),
    "no qid at all": (without_qid(LINES), {}, ": no qid on any line; expected label qid:query"),
    "empty": ("\n# nothing\n", {}, ": no lines; expected label qid:query"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_bad_lines_are_refused(write, case):
    content, options, message = BAD_LINES[case]
    path = write(content)
    with pytest.raises(DataError) as error:
        read_letor(path, **options)
    assert str(error.value).startswith(f"{path}{message}")


BAD_SIDES = {
    "sizes too few": ("group", "2\n", ": the sizes of 1 queries add up to 2 but "),
    "size no number": ("group", "2\nx\n", ":2: 'x'; expected the number of rows"),
    "size a fraction": ("group", "2\n0.5\n0.5\n", ":2: 0.5; expected the number of rows"),
    "size negative": ("group", "4\n\n-1\n", ":3: -1; expected the number of rows"),
    "sizes unlike qid": ("group", "1\n2\n", ": sizes differ from the qid of "),
    "scores too few": ("scores", "1\n2\n", ": 2 scores but "),
    "score no number": ("scores", "1\n2\nx\n", ":3: 'x'; expected the score of a row, a number"),
    "score nan": ("scores", "1\n\nnan\n3\n", ":3: 'nan'; expected the score of a row, a number"),
    "score beyond float32": ("scores", "1\n1e39\n3\n", ":2: '1e39'; expected the score of a row"),
}


@pytest.mark.parametrize("case", BAD_SIDES)
def test_bad_groups_and_scores_are_refused(write, case):
    option, content, message = BAD_SIDES[case]
    side = write(content, option)
    with pytest.raises(DataError) as error:
        read_letor(write(LINES), **{option: side})
    assert str(error.value).startswith(f"{side}{message}")


def test_a_damaged_gzip_file_is_refused(write):
    path = write(LINES * 1000, pack=True)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="damaged gzip file"):
        read_letor(path)


values = st.dictionaries(st.integers(1, 6), st.floats(-9, 9, width=32), max_size=6)


@given(st.lists(st.lists(st.tuples(st.integers(0, 4), values), min_size=1, max_size=4), min_size=1, max_size=4))
def test_what_is_written_is_read(tmp_path_factory, queries):
    path = tmp_path_factory.mktemp("letor") / "data"
    lines = [
        f"{label} qid:{query} " + " ".join(f"{index}:{value}" for index, value in sorted(row.items()))
        for query, rows in enumerate(queries)
        for label, row in rows
    ]
    path.write_text("\n".join(lines) + "\n")
    lists = read_letor(path, n_features=6)
    assert lists.lengths.tolist() == [len(rows) for rows in queries]
    assert lists.labels.tolist() == [label for rows in queries for label, _ in rows]
    want = [[row.get(index, 0) for index in range(1, 7)] for rows in queries for _, row in rows]
    np.testing.assert_array_equal(lists.features, np.float32(want))


def test_real_files(shared_data):
    lists = read_letor(shared_data / "lightgbm_rank" / "rank.train")
    assert (len(lists), len(lists.labels), lists.features.shape) == (201, 3005, (3005, 300))
    assert sorted(set(lists.labels.tolist())) == [0, 1, 2, 3, 4]
