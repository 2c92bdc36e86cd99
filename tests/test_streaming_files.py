"""Files longer than memory: blocks change nothing, nothing is kept, nothing is lost; and a bar says how far it is."""

import functools
import gzip
import io
import json
import os
import sys
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_ins import together

from jaxrank import _evaluate_command, cli
from jaxrank.data import (
    DataError,
    RankingLists,
    _files,
    _groups,
    _shares,
    letor,
    padded_batches,
    read_letor,
    read_qrels,
    read_run,
    trec,
)
from jaxrank.data import _tables as tables
from jaxrank.data.letor import LetorOptions, map_letor

LENGTHS = [3, 1, 7, 2, 5, 4, 1, 6]
COLUMNS = ("labels", "scores", "features")


@pytest.fixture(scope="module")
def trec_files(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("trec"), np.random.default_rng(0)
    judged = [(q, d, rng.integers(0, 4)) for q in range(len(LENGTHS) + 1) for d in range(4)]
    (folder / "qrels").write_text("".join(f"q{q} 0 d{d} {g}\n" for q, d, g in judged))
    retrieved = [f"q{q} Q0 d{d} 0 {rng.normal():.3f} t\n" for q, n in enumerate(LENGTHS) for d in range(n)]
    (folder / "run").write_text("".join(retrieved))
    (folder / "run.gz").write_bytes(gzip.compress("".join(retrieved).encode()))
    (folder / "scattered").write_text("".join([*retrieved[1:], retrieved[0]]))
    return folder


@pytest.fixture(scope="module")
def letor_files(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("letor"), np.random.default_rng(0)
    rows = [
        (rng.integers(0, 4), q, f"{rng.integers(1, 9)}:{rng.normal():.3f}")
        for q, n in enumerate(LENGTHS)
        for _ in range(n)
    ]
    (folder / "data").write_text("# heading\n\n" + "".join(f"{y} qid:{q} {x} # doc\n" for y, q, x in rows))
    (folder / "bare").write_text("".join(f"{y} {x}\n" for y, _, x in rows))
    (folder / "sizes").write_text("0\n" + "".join(f"{n}\n0\n" for n in LENGTHS))
    (folder / "scores").write_text("".join(f"{rng.normal():.3f}\n" for _ in rows))
    return folder


@pytest.fixture(params=[7, 300])
def small_blocks(request, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK_BYTES", request.param)
    monkeypatch.setattr(_files, "BLOCK_BYTES", request.param)


def assert_equal_lists(got, want):
    assert got.queries == want.queries
    assert got.lengths.tolist() == want.lengths.tolist()
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name))


def whole_letor(folder, name="data", group=None):
    return read_letor(folder / name, scores=folder / "scores", group=group)


# ----------------------------------------------------------------------------------------------- blocks change nothing


@pytest.mark.parametrize("block", [1, 40, 300])
@pytest.mark.parametrize("name, group", [("data", None), ("bare", "sizes")])
def test_a_letor_file_reads_the_same_in_any_blocks(letor_files, monkeypatch, name, group, block):
    options = (name, group and letor_files / group)
    want = whole_letor(letor_files, *options)
    assert want.lengths[want.lengths > 0].tolist() == LENGTHS
    monkeypatch.setattr(_files, "BLOCK_BYTES", block)
    assert_equal_lists(whole_letor(letor_files, *options), want)


@pytest.mark.parametrize("count, rows", [(1, 6), (2, 1), (3, 1000), (11, 6)])
@pytest.mark.parametrize("kind", ["trec", "letor"])
def test_blocks_and_shares_put_together_are_the_whole(trec_files, letor_files, small_blocks, kind, rows, count):
    if kind == "trec":
        qrels = read_qrels(trec_files / "qrels")
        want = read_run(trec_files / "run", qrels).lists
        read = functools.partial(trec.map_run, path=trec_files / "run", qrels=qrels, options=trec.RunOptions())
    else:
        want = read_letor(letor_files / "data", scores=letor_files / "scores", features=False)
        options = LetorOptions(scores=letor_files / "scores", features=False)
        read = functools.partial(map_letor, path=letor_files / "data", options=options)
    found = {}
    for mapped in together(count, lambda processes: read(by_query, share=processes.share, block_rows=rows)):
        assert mapped.queries == want.queries
        lists = [item for part in mapped.parts for item in part]
        assert [query for query, _ in lists] == [q for q, own in zip(want.queries, mapped.owned) if own]
        assert not found.keys() & dict(lists).keys()
        found |= dict(lists)
    assert found == dict(by_query(want))


@pytest.mark.parametrize("count", [1, 2, 3, 11])
@pytest.mark.parametrize("name", ["run", "run.gz", "data", "bare"])
def test_each_line_is_parsed_by_one_process(trec_files, letor_files, small_blocks, monkeypatch, name, count):
    parsed = []

    def noted(read, text_of):
        return lambda *args: (parsed.append((threading.get_ident(), text_of(*args))), read(*args))[1]

    if name in ("data", "bare"):
        monkeypatch.setattr(letor, "read_block", noted(letor.read_block, lambda path, first, text, format: text))
        options = LetorOptions(group=letor_files / "sizes" if name == "bare" else None)
        path = letor_files / name
        together(count, lambda processes: letor.read_share(path, options, processes.share))
    else:
        monkeypatch.setattr(_groups, "read_block", noted(_groups.read_block, lambda path, layout, first, text: text))
        qrels, path = read_qrels(trec_files / "qrels"), trec_files / name.removesuffix(".gz")
        given = trec_files / name, qrels, trec.RunOptions()
        together(count, lambda processes: trec.map_run(len, *given, share=processes.share))
    lines = b"".join(text for _, text in parsed).splitlines()
    assert sorted(lines) == sorted(path.read_bytes().splitlines())
    assert len({thread for thread, _ in parsed}) >= min(count, 2)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_one_process_finds_wrong_all_of_them_say(tmp_path, small_blocks, count):
    def read(processes):
        try:
            return letor.read_share(tmp_path / "data", LetorOptions(), processes.share)
        except DataError as error:
            return str(error)

    lines = [f"1 qid:{q} 1:1\n" for q in range(40)]
    for more, message in {
        "1 qid:50 1:x\n1 qid:51 y\n": ":41: value of feature 1 'x'",  # the first of several
        "1 qid:3 1:1\n": ":41: query 3 again, after other queries",
        "1 1:1\n": ":41: no qid, unlike the lines before",
    }.items():
        (tmp_path / "data").write_text("".join([*lines, more]))
        for said in together(count, read):
            assert said.startswith(f"{tmp_path / 'data'}{message}")


def test_processes_with_different_files_are_told(tmp_path):
    for i in range(3):
        (tmp_path / str(i)).write_text("1 qid:1 1:1\n" + ("2" if i == 2 else "1") + " qid:2 1:1\n")
    with pytest.raises(DataError, match="processes 0 and 2 have read different files; expected the same"):
        together(
            3, lambda processes: letor.read_share(tmp_path / str(processes.index), LetorOptions(), processes.share)
        )


lines_of_queries = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 6)), max_size=12)


@given(lines_of_queries, st.integers(1, 60), st.booleans())
def test_blocks_are_cut_between_queries_only(tmp_path_factory, queries, size, blank):
    path = tmp_path_factory.mktemp("blocks") / "file"
    runs = [query for i, (query, _) in enumerate(queries) if i == 0 or queries[i - 1][0] != query]
    text = ("\n" if blank else "").join(f"{query} {i}\n" for query, count in queries for i in range(count)).encode()
    path.write_bytes(text)
    blocks = list(_shares.query_blocks(path, _shares.KeyCut(_groups._query), size, None))
    assert b"".join(block.text for block in blocks) == text
    assert [block.number for block in blocks] == list(range(len(blocks)))
    assert [block.first for block in blocks] == [1 + text[:end].count(b"\n") for end in begins(blocks)]
    found = [
        list(dict.fromkeys(line.split()[0] for line in block.text.decode().splitlines() if line)) for block in blocks
    ]
    if len(set(runs)) == len(runs):  # else queries are scattered, which shows later
        assert [query for block in found for query in block] == runs


def begins(blocks):
    ends = np.cumsum([0, *(len(block.text) for block in blocks)])
    return ends[:-1].tolist()


def by_query(lists):
    rows = list(zip(lists.labels.tolist(), lists.scores.tolist()))
    bounds = lists.offsets.tolist()
    return [(query, rows[bounds[i] : bounds[i + 1]]) for i, query in enumerate(lists.queries)]


@pytest.mark.parametrize("name", ["run", "run.gz", "scattered"])
def test_figures_of_a_long_run_are_those_of_each_query(trec_files, monkeypatch, capsys, name):
    def figures():
        arguments = [str(trec_files / "qrels"), str(trec_files / name), "-k", "2,all", "--format", "json", "-q"]
        with pytest.raises(SystemExit):
            cli.run(["evaluate", *arguments])
        return json.loads(capsys.readouterr().out)

    want = figures()
    monkeypatch.setattr(tables, "BLOCK_BYTES", 60)
    monkeypatch.setattr(_evaluate_command, "map_run", functools.partial(trec.map_run, block_rows=5))
    assert figures() == want
    assert len(want["per_query"]) == len(LENGTHS) + 1


def test_scattered_queries_of_a_run_too_long_to_sort(trec_files, monkeypatch):
    monkeypatch.setattr(trec, "SCATTERED_LINES", 10)
    monkeypatch.setattr(tables, "BLOCK_BYTES", 60)
    with pytest.raises(DataError, match=r"more than 10 lines .*; sort the file by query first: sort -s -k1,1 "):
        trec.map_run(len, trec_files / "scattered", read_qrels(trec_files / "qrels"), trec.RunOptions())


# ----------------------------------------------------------------------------------------------------- nothing is kept


@pytest.mark.parametrize("kind", ["trec", "letor"])
def test_a_block_is_gone_when_the_next_one_comes(trec_files, letor_files, monkeypatch, kind):
    monkeypatch.setattr(tables, "BLOCK_BYTES", 40)
    monkeypatch.setattr(_files, "BLOCK_BYTES", 40)
    earlier, alive = [], []

    def use(lists):
        alive.append(sum(reference() is not None for reference in earlier))
        earlier.extend(weakref.ref(column.base) for column in (lists.labels, lists.scores))

    if kind == "trec":
        qrels = read_qrels(trec_files / "qrels")
        trec.map_run(use, trec_files / "run", qrels, trec.RunOptions(), block_rows=1)
    else:
        options = LetorOptions(scores=letor_files / "scores", features=False)
        map_letor(use, letor_files / "data", options, block_rows=1)
    assert len(alive) > 4
    assert max(alive) <= 2  # at most the block before


# ----------------------------------------------------------------------------------------------------- nothing is lost

EARLY = "1 qid:1 1:1\n" * 30
BAD_LETOR = {
    "no qid from here on": ("1 1:1\n" * 20, ":31: no qid, unlike the lines before"),
    "a value": ("1 qid:2 1:x\n", ":31: value of feature 1 'x'"),
    "a label": ("\n# comment\n1 qid:2 1:1\nnan qid:2\n", ":34: label 'nan'"),
    "a query again": ("1 qid:2 1:1\n" * 30 + "1 qid:1 1:1\n", ":61: query 1 again, after other queries"),
    "a qid that is no number": ("1 qid:2x 1:1\n", ":31: qid '2x'"),
}


@pytest.mark.parametrize("case", BAD_LETOR)
def test_a_bad_line_of_a_later_block_is_named(tmp_path, small_blocks, case):
    more, message = BAD_LETOR[case]
    (tmp_path / "data").write_text(EARLY + more)
    with pytest.raises(DataError) as error:
        read_letor(tmp_path / "data")
    assert str(error.value).startswith(f"{tmp_path / 'data'}{message}")


def test_qid_after_lines_without_is_named(tmp_path, small_blocks):
    (tmp_path / "data").write_text("1 1:1\n" * 30 + EARLY)
    with pytest.raises(DataError, match=r"data:31: a qid, unlike the lines before"):
        read_letor(tmp_path / "data")


@pytest.mark.parametrize("change", [1, -1])
@pytest.mark.parametrize("side", ["sizes", "scores"])
def test_sizes_and_scores_that_do_not_fit_a_long_file(letor_files, tmp_path, small_blocks, side, change):
    rows, total = letor_files / "bare", sum(LENGTHS)
    sizes = LENGTHS[:-1] + [LENGTHS[-1] + (change if side == "sizes" else 0)]
    (tmp_path / "sizes").write_text("".join(f"{n}\n" for n in sizes))
    (tmp_path / "scores").write_text("1\n" * (total + (change if side == "scores" else 0)))
    with pytest.raises(DataError, match=rf"{side}: .*\b{total + change} .*but .* has {total} rows"):
        read_letor(rows, group=tmp_path / "sizes", scores=tmp_path / "scores")


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="this system has no names for pipes")
def test_a_pipe_is_refused_rather_than_read_in_part(trec_files):
    read, write = os.pipe()
    try:
        os.write(write, b"q1 Q0 d1 0 1 t\n")
        with pytest.raises(DataError, match="a pipe, which can be read but once; expected a file"):
            read_run(f"/dev/fd/{read}", read_qrels(trec_files / "qrels"))
    finally:
        os.close(read)
        os.close(write)


numbers = st.lists(st.sampled_from(["1", "-2.5", " 3e-2 ", "inf", "-inf", "1e38", "7\r"]), max_size=20)


@given(numbers, st.integers(1, 30), st.booleans(), st.data())
def test_a_column_of_numbers_is_that_of_its_lines(tmp_path_factory, texts, block, blank, data):
    path = tmp_path_factory.mktemp("numbers") / "column"
    path.write_bytes(("\n" if blank else "").join(f"{text}\n" for text in texts).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_files, "BLOCK_BYTES", block)
        column, taken = _files.NumberColumn(path, "a number"), []
        while not column.ended():
            taken += column.take(data.draw(st.integers(1, 5))).tolist()
    assert taken == [float(text) for text in texts]


# ------------------------------------------------------------------------------------------- few shapes for all blocks

blocks = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=20), min_size=1, max_size=5)


@given(blocks, st.sampled_from([0.05, 0.3, 0.6]))
def test_blocks_share_shapes(lengths_of_blocks, max_padding):
    shapes, used = {}, set()
    for lengths in lengths_of_blocks:
        queries = tuple(map(str, range(len(lengths))))
        lists = RankingLists(queries, np.array(lengths), np.arange(sum(lengths), dtype=np.float32))
        batches = list(padded_batches(lists, max_padding=max_padding, max_slots=64, shapes=shapes))
        used |= {batch.where.shape for batch in batches}
        found = {
            int(i): row[valid].tolist() for b in batches for i, row, valid in zip(b.lists, b.labels, b.where) if i >= 0
        }
        bounds = lists.offsets.tolist()
        assert found == {i: lists.labels[bounds[i] : bounds[i + 1]].tolist() for i in range(len(lists))}
        slots = sum(min(edge for edge in shapes if edge >= max(n, 1)) for n in lengths)
        assert slots * (0.95 - max_padding) < 17 / 16 * sum(max(n, 1) for n in lengths)
    assert used <= {(rows, length) for length, rows in shapes.items()}


def test_like_blocks_need_no_more_shapes():
    rng, shapes, counts = np.random.default_rng(0), {}, []
    for _ in range(5):
        lengths = rng.integers(1, 100, 300)
        lists = RankingLists(tuple(map(str, lengths)), lengths, np.zeros(lengths.sum(), np.float32))
        list(padded_batches(lists, max_slots=4096, shapes=shapes))
        counts.append(len(shapes))
    assert counts[-1] == counts[0]


# ------------------------------------------------------------------------------------------------------------- the bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("kind", ["trec", "letor"])
def test_a_terminal_gets_a_bar_with_lines_a_second(trec_files, letor_files, monkeypatch, capsys, kind, terminal):
    error = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", error)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(tables, "BLOCK_BYTES", 40)
    if kind == "trec":
        arguments = [trec_files / "qrels", trec_files / "run.gz"]
    else:
        arguments = ["--letor", letor_files / "data", "--scores", letor_files / "scores"]
    with pytest.raises(SystemExit):
        cli.run(["evaluate", *map(str, arguments), "-k", "2", "--format", "tsv"])
    shown, lines = error.getvalue(), sum(LENGTHS) + (2 if kind == "letor" else 0)
    assert ("lines/s" in shown) == terminal == (f" {lines} lines," in shown), shown
    assert capsys.readouterr().out.startswith("query\tndcg@2\nall\t")


def test_the_watch_sees_all_lines_and_bytes(trec_files):
    seen = []
    read_qrels(trec_files / "qrels", watch=lambda *state: seen.append(state))
    size = (trec_files / "qrels").stat().st_size
    assert seen[-1] == (4 * (len(LENGTHS) + 1), size, size)
