"""What is wrong with a file costs as little of it as possible, and is said in one line."""

import gzip
import os
import re
import stat
import threading

import orjson
import pytest
from backports import zstd

from otel_rollout.look.dumps import cache, dump_file
from otel_rollout.look.errors import ViewerError
from tests.dumps.reading import verl_line, write_lines

GOOD = [orjson.dumps(verl_line(number)) + b"\n" for number in range(4)]


@pytest.mark.parametrize(
    ("content", "trajectories", "remark"),
    [
        (b"".join(GOOD) + GOOD[0][:40], 4, "the last line has no end"),
        (b"{no\n" * 5 + b"".join(GOOD), 4, "5 records could not be read (line 1: "),
        (b"".join(GOOD[:2]) + b"\xff\xfe\n[1]\n7\n" + b"".join(GOOD[2:]), 4, "line 3: "),
        (b"[1]\n" + b"".join(GOOD), 4, "1 record could not be read (line 1: is no JSON object)."),
        (b"[7,\n" + GOOD[0] + b"]", 1, "1 record could not be read (line 1: is no JSON object)."),
        (b"".join(GOOD) + b'{"input": "half \\ud83d", "output": "x"}\n', 5, ""),
        (GOOD[0].replace(b"0.0", b"NaN") + GOOD[1].replace(b"1.0", b"-Infinity"), 2, ""),
        (GOOD[0].replace(b'+1', "+\u2028 1".encode()), 1, ""),
        (GOOD[0].replace(b'"0.0"', b"0") + b"\n\n" + GOOD[1], 2, ""),
        (GOOD[0].rstrip(b"}\n") + b', "n": 123456789012345678901234567890}\n' + GOOD[1], 2, ""),
        (gzip.compress(b"".join(GOOD)), 4, ""),
        (zstd.compress(b"".join(GOOD)), 4, ""),
        (b"[" + b",\n".join(line.strip() for line in GOOD) + b"]", 4, ""),
        (b"".join(GOOD).replace(b"\n", b"\r\n"), 4, ""),
        (GOOD[0] + b'{"input": "a\nb"}\n' + GOOD[1], 2, "(line 2: Invalid control character; line 3: "),
        (b"[" * 100_000 + b"\n" + b"".join(GOOD), 4, "1 record could not be read"),
    ],
    ids=[
        *("half-written end", "malformed", "binary and other values", "array first"),
        *("number in a document", "half surrogate pair"),
        *("NaN and Infinity", "U+2028", "empty lines", "huge integer", "gzip", "zstd", "one document"),
        *("CRLF", "line break in a text", "deep"),
    ],
)  # fmt: skip
def test_what_can_be_read_is_read(tmp_path, opened, content, trajectories, remark):
    """Every whole record of a damaged or unusual file is shown, and a remark names file and line."""
    (tmp_path / "1.jsonl").write_bytes(content)
    found = opened(tmp_path / "1.jsonl", format_="verl")
    assert len(found.trajectories()) == trajectories
    assert remark in "\n".join(found.remarks)
    assert not remark or str(tmp_path / "1.jsonl") in "\n".join(found.remarks)


def test_a_record_of_other_types_ends_its_file_alone(tmp_path, opened):
    """What came before it and the other files are shown, and a remark names file and error."""
    line = {"_ng_task_index": 1, "_ng_rollout_index": 0, "response": {"output": []}, "reward": 1.0}
    lines = [line, line | {"response": {"output": 7}}, line]
    write_lines(tmp_path / "run/1.jsonl", lines)
    write_lines(tmp_path / "run/2.jsonl", [line | {"_ng_task_index": 2}])
    found = opened(tmp_path / "run")
    assert len(found.trajectories()) == 2
    assert any("1.jsonl: the rest is not read, after TypeError" in remark for remark in found.remarks)


@pytest.mark.parametrize("compress", [gzip.compress, zstd.compress])
def test_a_compressed_file_without_its_end_is_remarked(tmp_path, opened, compress):
    """What precedes the cut is shown, and a remark names the file."""
    lines = b"".join(orjson.dumps(verl_line(n, output=os.urandom(99).hex())) + b"\n" for n in range(4000))
    (tmp_path / "1.jsonl.x").write_bytes(compress(lines)[:-100_000])
    found = opened(tmp_path / "1.jsonl.x")
    assert 1000 < len(found.trajectories()) < 4000
    assert sum("1.jsonl.x is cut off: its end is missing" in remark for remark in found.remarks) == 1


def test_a_forced_format_must_be_the_files_own(tmp_path, opened):
    """A file without the format's fields is refused with those that it lacks."""
    path = write_lines(tmp_path / "1.jsonl", [{"input": "6*7?", "output": "42"}])
    with pytest.raises(ViewerError, match=r"1\.jsonl is no verl: its records lack gts, score, step\."):
        opened(path, format_="verl")


def test_only_the_first_three_malformed_lines_are_named(tmp_path, opened):
    """The remark counts all of them."""
    (tmp_path / "1.jsonl").write_bytes(GOOD[0] + b"x\n" * 9)
    (remark,) = opened(tmp_path / "1.jsonl").remarks[1:]
    assert "9 records" in remark
    assert [f"line {line}:" in remark for line in range(2, 6)] == [True, True, True, False]


def test_a_reward_that_is_no_number_makes_no_mean(tmp_path, opened):
    """NaN is kept as a label, and the mean is that of the other rewards."""
    write_lines(tmp_path / "1.jsonl", [verl_line(score=float("nan")), verl_line(1, score=3.0)])
    found = opened(tmp_path / "1.jsonl")
    assert [row["reward_mean"] for row in found.rows("SELECT reward_mean FROM steps")] == [3.0]
    labels = found.rows("SELECT label FROM scores WHERE name = 'reward' AND value IS NULL")
    assert [row["label"].lower() for row in labels] == ["nan"]


def test_a_reward_that_is_a_text_is_kept_as_a_label(tmp_path, opened):
    """As ``score()`` keeps it: nothing that a dump says of a trajectory is lost."""
    talk = [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": "42"}]
    write_lines(tmp_path / "1.jsonl", [{"messages": talk, "reward": reward} for reward in ("late", 1)])
    found = opened(tmp_path / "1.jsonl").rows(
        "SELECT reward, reward_label FROM trajectories ORDER BY rollout_n"
    )
    assert found == [{"reward": None, "reward_label": "late"}, {"reward": 1.0, "reward_label": None}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", "it is empty"),
        ("a.jsonl", os.urandom(5000) + b"\0", "it is no dump"),
        ("a.bin", bytes(range(256)) * 40, "it is no dump"),
        ("a.jsonl", b"PAR1 and no more", "cannot be read as Parquet"),
        ("a.jsonl.gz", gzip.compress(GOOD[0])[:-9] + b"\0" * 9, "cannot be decompressed"),
        ("results.jsonl", b'{"task_key": "t", "valid": true, "reason": ""}\n', "--map messages=FIELD"),
        ("a.pt", b"PK\x03\x04 and no zip", "is not opened"),
    ],
    ids=["empty", "random", "binary", "no parquet", "damaged gzip", "no rollouts", "no zip"],
)  # fmt: skip
def test_a_file_without_trajectories_is_refused_in_one_line(tmp_path, opened, name, content, message):
    """The error names the file and what is wrong with it."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ViewerError, match=message) as raised:
        opened(tmp_path / name)
    assert name in str(raised.value)


def test_a_line_beyond_the_limit_is_left_out_and_the_next_one_read(tmp_path, opened, monkeypatch):
    """A line that is too long is named with the limit, and its rest is skipped."""
    monkeypatch.setattr(dump_file, "MAX_LINE_BYTES", 1 << 20)
    long = orjson.dumps(verl_line(output="x" * (3 << 20))) + b"\n"
    (tmp_path / "1.jsonl").write_bytes(GOOD[0] + long + GOOD[1])
    found = opened(tmp_path / "1.jsonl")
    assert len(found.trajectories()) == 2
    assert "line 2: is longer than 1 MiB" in found.remarks[1]


def test_a_line_of_100_mb_is_read(tmp_path, opened):
    """Lines with images are long."""
    (tmp_path / "1.jsonl").write_bytes(orjson.dumps(verl_line(output="x" * 100_000_000)) + b"\n" + GOOD[1])
    found = opened(tmp_path / "1.jsonl")
    assert [row["n"] for row in found.rows("SELECT max(octet_length(reply)) AS n FROM turns")] == [
        100_000_000
    ]


def test_links_in_a_circle_are_passed_over(tmp_path, opened):
    """A folder with a link to itself, and a link that leads nowhere, is read once."""
    write_lines(tmp_path / "run/1.jsonl", [verl_line()])
    (tmp_path / "run/again").symlink_to(tmp_path / "run")
    (tmp_path / "run/2.jsonl").symlink_to("2.jsonl")
    assert len(opened(tmp_path / "run").trajectories()) == 1


def test_a_file_that_grows_is_read_to_the_end_that_it_had(tmp_path, opened):
    """Reading ends while a writer goes on, and each trajectory that was there is shown."""
    path = tmp_path / "1.jsonl"
    path.write_bytes(b"".join(GOOD))
    ended = threading.Event()

    def write():
        with open(path, "ab", buffering=0) as file:
            while not ended.is_set():
                file.write(GOOD[0])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = opened(path)
    finally:
        ended.set()
        writer.join()
    assert len(found.trajectories()) >= 4


def test_one_folder_may_hold_two_formats(tmp_path, opened):
    """Each format gets its line; a file that is none is named."""
    write_lines(tmp_path / "run/1.jsonl", [verl_line()])
    write_lines(tmp_path / "run/talk.jsonl", [{"messages": [{"role": "assistant", "content": "hi"}]}])
    write_lines(tmp_path / "run/metrics.jsonl", [{"loss": 1}])
    found = opened(tmp_path / "run")
    runs = [row["run_id"] for row in found.rows("SELECT run_id FROM runs ORDER BY run_id")]
    assert [run.rpartition("-")[0] for run in runs] == ["messages/talk", "verl/run"]
    told = "\n".join(found.remarks)
    assert "verl rollout dump: 1 file" in told
    assert "messages: 1 file" in told
    assert f"Left out, without trajectories: {tmp_path}/run/metrics.jsonl." in told


def test_a_pickle_in_a_folder_is_left_out(tmp_path, opened):
    """Other files are read, and a remark names the pickle."""
    write_lines(tmp_path / "run/1.jsonl", [verl_line()])
    (tmp_path / "run/state.pkl").write_bytes(b"\x80\x04N.")
    found = opened(tmp_path / "run")
    assert len(found.trajectories()) == 1
    assert any("state.pkl is a pickle" in remark for remark in found.remarks)


def test_rollouts_of_one_identity_are_two_trajectories(tmp_path, opened):
    """A repeated identity hides nothing, and a remark counts it."""
    write_lines(tmp_path / "1.jsonl", [verl_line(), verl_line(1), verl_line(output="other")])
    found = opened(tmp_path / "1.jsonl")
    assert [row["path"] for row in found.trajectories()] == ["1/0/0", "1/0/0", "1/0/1"]
    assert any(re.match("1 trajectory of .+ with an identity", remark) for remark in found.remarks)


def test_tables_are_kept_in_private_and_the_oldest_goes_first(tmp_path, opened, monkeypatch):
    """A dump opens from its table while it is unchanged; the directory is private and bounded."""
    path = write_lines(tmp_path / "1.jsonl", [verl_line()])
    first = opened(path)
    assert stat.S_IMODE(first.table.parent.stat().st_mode) == 0o700
    assert opened(path).table == first.table
    write_lines(path, [verl_line(), verl_line(1)])
    second = opened(path)
    assert (second.table == first.table, len(second.trajectories())) == (False, 2)
    monkeypatch.setattr(cache, "MAX_BYTES", 1)
    third = opened(write_lines(tmp_path / "2.jsonl", [verl_line()]))
    assert list(third.table.parent.iterdir()) == [third.table]


@pytest.mark.parametrize("room", ["base", "otlp", "table", "look/dumps/readers"])
def test_a_newer_build_makes_a_dumps_table_anew(tmp_path, opened, monkeypatch, room):
    """Its code may read the same file otherwise, whatever version it is called."""
    monkeypatch.setattr(cache, "_PACKAGE", tmp_path / "build")
    (code := tmp_path / "build" / room / "x.py").parent.mkdir(parents=True)
    path = write_lines(tmp_path / "1.jsonl", [verl_line()])
    tables = []
    for text in ("1", "1", "2"):
        code.write_text(text)
        tables.append(opened(path).table)
    assert tables[0] == tables[1] != tables[2]


def test_directory_for_tables_may_hold_other_things(tmp_path, opened, monkeypatch):
    """What lies in the directory that a setting names is neither removed nor made private."""
    (mine := tmp_path / "kept" / "mine").mkdir(parents=True)
    (mine / "file").write_bytes(b"x" * 100)
    before = (tmp_path / "kept").stat().st_mode
    monkeypatch.setattr(cache, "MAX_BYTES", 1)
    opened(write_lines(tmp_path / "1.jsonl", [verl_line()]))
    assert (mine / "file").exists()
    assert (tmp_path / "kept").stat().st_mode == before
