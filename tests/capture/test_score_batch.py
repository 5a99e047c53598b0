"""Scores of a whole batch, from lists, arrays and tensors."""

from __future__ import annotations

import enum
import json
import math
import random
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import otel_rollout
from otel_rollout import rollout_trace_attr, score, score_batch
from otel_rollout.base import semconv
from otel_rollout.otlp import evaluations
from otel_rollout.otlp.score_batch import expanded, is_batch
from otel_rollout.spool.files import lines_of
from tests.sdk_spans import spans_of
from tests.spool_reader import segment_lines, segments_below

Found = tuple[Any, ...]


class Verdict(enum.Enum):
    GOOD = "good"


class Odd:
    def __float__(self) -> float:
        raise RuntimeError("no")


@pytest.fixture
def lines(recorded, tmp_path) -> Callable[[], list[bytes]]:
    """Return a function that ends recording and returns the recorded lines."""

    def ended() -> list[bytes]:
        recorded()
        return [line for path in segments_below(tmp_path / "spool") for line in segment_lines(path)]

    return ended


def found_in(lines: list[bytes]) -> list[Found]:
    """Return name, value, step, row, rollout and comment of each score."""
    found = []
    for span in (span for line in lines for each in expanded(line) for span in spans_of(each)):
        known = span.attributes or {}
        given_score = evaluations.recorded_in(known, span.start_time or 0)
        if given_score is not None:
            identity = tuple(
                known.get(key) for key in (semconv.STEP, semconv.SAMPLE_INDEX, semconv.ROLLOUT_N)
            )
            found.append((given_score.name, given_score.value, *identity, given_score.comment))
    return found


def test_a_batch_is_one_line_and_reads_as_the_scores_of_a_loop(lines):
    """Arrays, lists and single values give what ``score()`` records of each trajectory."""
    advantages = np.array([0.1, math.nan, math.inf], np.float32)
    names = {"advantage": advantages, "trained": [True, False, None], "verdict": [Verdict.GOOD, 1, "bad"]}
    reasons = [None, "all rewards are equal", "not recorded"]
    identity = {"step": np.int64(7), "sample_index": np.arange(3), "rollout_n": [0, 1, 2]}
    score_batch(names, **identity, comments={"trained": reasons})
    batch_lines = lines()
    assert len(batch_lines) == 1
    expected = []
    for name, values in names.items():
        for row, value in enumerate(values):
            if value is not None:
                comment = reasons[row] if name == "trained" else None
                number = value.item() if isinstance(value, np.float32) else value
                label = number.value if isinstance(number, Verdict) else number
                if isinstance(label, (int, float)) and not isinstance(label, bool):
                    label = float(label) if math.isfinite(label) else str(label)
                expected.append((name, label, 7, row, row, comment or ""))
    assert sorted(found_in(batch_lines), key=repr) == sorted(expected, key=repr)


@pytest.mark.parametrize("flags", [[False, True], np.array([False, True])], ids=["list", "array"])
def test_bools_in_place_of_numbers_name_what_score_names(lines, flags):
    """They are recorded as 0 and 1, as of a trajectory."""
    score_batch({"a": [0.0, 1.0]}, step=True, sample_index=[7, 8], rollout_n=flags)
    found = found_in(lines())
    assert found == [("a", 0.0, 1, 7, 0, ""), ("a", 1.0, 1, 8, 1, "")]
    assert {type(given) for row in found for given in (row[2], row[4])} == {int}


def test_the_last_row_of_a_trajectory_is_its_newest_in_a_batch_of_any_size(lines, monkeypatch):
    """A row per turn: each name has the last turn's score, also where the batch takes several lines."""
    monkeypatch.setattr("otel_rollout.record.capture.score_batch._LINE_BYTES", 100)
    id_ = f"00-{'a' * 32}-{'b' * 16}-01"
    score_batch({"a": np.arange(50), "b": [str(row) for row in range(50)]}, trajectory=[id_] * 50)
    recorded = lines()
    assert len(recorded) > 1
    times: dict[str, list[tuple[int, float]]] = {"score a": [], "score b": []}
    for line in reversed(recorded):
        for span in (span for each in expanded(line) for span in spans_of(each)):
            times[span.name].append(
                (span.start_time, float(span.attributes[semconv.OUTPUT_VALUE].strip('"')))
            )
    for known in times.values():
        assert [value for _, value in sorted(known)] == list(range(50))
        assert len({time // 1000 for time, _ in known}) == 50


def attributes_without_ids(line: bytes) -> list[tuple[str, dict[str, Any], Any, Any]]:
    return [
        (span.name, dict(span.attributes or {}), span.resource, span.parent and span.parent.span_id)
        for each in expanded(line)
        for span in spans_of(each)
    ]


@pytest.mark.parametrize("value", [1.5, True, "label", math.nan, 3])
@pytest.mark.parametrize("is_by_id", [False, True])
def test_a_score_of_a_batch_has_the_attributes_of_a_single_score(lines, value, is_by_id):
    """Names, origin, output and parent are equal."""
    id_ = f"00-{'a' * 32}-{'b' * 16}-01"
    named = {"trajectory": id_} if is_by_id else {"step": 1, "sample_index": "uid", "rollout_n": 2}
    score("reward", value, comment="why", **named)
    columns = {key: [each] for key, each in named.items()}
    score_batch({"reward": [value]}, comments={"reward": ["why"]}, **columns)
    single, batch = lines()
    assert attributes_without_ids(single) == attributes_without_ids(batch)


def tensors() -> list[Any]:
    torch = pytest.importorskip("torch")
    values = [0.5, -1.25, 3.0]
    return [
        torch.tensor(values),
        torch.tensor(values, dtype=torch.float64),
        torch.tensor(values, dtype=torch.float16),
        torch.tensor(values, dtype=torch.bfloat16),
        torch.tensor(values, requires_grad=True),
        torch.tensor(values)[torch.tensor([0, 1, 2])],
        torch.tensor([values, values]).T[:, 0],
        list(torch.tensor(values)),
    ]


def test_tensors_of_any_type_are_recorded_and_not_changed(lines):
    """Half precision, gradients, strides and lists of scalars too."""
    made = tensors()
    copies = [[value.item() for value in values] for values in made]
    states = random.getstate(), np.random.get_state()[1].tolist()
    score_batch({f"t{n}": values for n, values in enumerate(made)}, step=1, sample_index=[0, 1, 2])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states
    assert [[value.item() for value in values] for values in made] == copies
    values = {name: [] for name in (f"t{n}" for n in range(len(made)))}
    for name, value, *_ in found_in(lines()):
        values[name].append(value)
    assert list(values.values()) == copies


@pytest.mark.parametrize(
    ("arguments", "names", "warning"),
    [
        ({"step": 1}, [], "a trajectory is named by step="),
        ({"step": 1, "sample_index": [1, 2], "trajectory": ["a", "b"]}, [], "give one of them"),
        ({"step": [1], "sample_index": [1, 2]}, [], "differ in number: step= has 1, sample_index= has 2"),
        ({"step": 1, "sample_index": [1, 2, 3]}, [], "it has 2 entries for 3 trajectories"),
    ],
)
def test_unclear_batch_is_refused_with_one_warning(lines, caplog, arguments, names, warning):
    """Nothing is raised, and nothing of it is recorded."""
    for _ in range(2):
        score_batch({"reward": [1.0, 2.0]}, **arguments)
    assert [found[0] for found in found_in(lines())] == names
    assert [warning in record.message for record in caplog.records] == [True]


def test_what_is_wrong_is_left_out_and_the_rest_is_recorded(lines, caplog):
    """A name that is too long, a length that differs, and a value that is no score."""
    score_batch(
        {"x" * 251: [1, 2], 5: [1, 2], "": [1, 2], "short": [1], "odd": [Odd(), 2], "good": [Decimal(1), 2]},
        step=1,
        sample_index=[1, 2],
        comments={"good": ["only one"], "unknown": ["a", "b"], "odd": [None, 7]},
    )
    found = found_in(lines())
    assert sorted((name, value, row, comment) for name, value, _, row, _, comment in found) == [
        ("good", 1.0, 1, ""),
        ("good", 2.0, 2, ""),
        ("odd", 2.0, 2, "7"),
    ]
    assert len(caplog.records) == 6


class Raising:
    """A column of three rows of which one method raises."""

    def __init__(self, method: str) -> None:
        self._method = method

    def _of(self, method: str, result: Any) -> Any:
        if method == self._method:
            raise RuntimeError("no")
        return result

    def __len__(self) -> int:
        return int(self._of("len", 3))

    def tolist(self) -> list[float]:
        return list(self._of("tolist", [1.0] * 3))

    @property
    def ndim(self) -> int:
        return int(self._of("ndim", 1))


def bad_columns() -> list[Any]:
    torch = pytest.importorskip("torch")
    return [
        torch.ones(3, device="meta"),
        torch.ones(3).to_sparse(),
        *map(Raising, ("len", "tolist", "ndim")),
        [10**400, 1, 2],
    ]


@pytest.mark.parametrize("column", range(6))
def test_a_column_that_cannot_be_read_is_left_out_alone(lines, caplog, column):
    """One warning names it, be it scores or comments; the other columns are recorded."""
    bad = bad_columns()[column]
    score_batch({"bad": bad, "good": [1, 2, 3]}, step=1, sample_index=[1, 2, 3])
    if column < 5:
        score_batch({"c": [4, 5, 6]}, step=1, sample_index=[1, 2, 3], comments={"c": bad})
    found = [each[:2] for each in found_in(lines())]
    assert found == [("good", 1.0), ("good", 2.0), ("good", 3.0)] + [("c", 4.0), ("c", 5.0), ("c", 6.0)] * (
        column < 5
    )
    named = ["'bad'", "'c'"] if column < 5 else ["'bad'"]
    assert [name in record.message for name, record in zip(named, caplog.records, strict=True)] == [
        True
    ] * len(named)


def missing_columns() -> list[Any]:
    pandas = pytest.importorskip("pandas")
    masked = np.ma.MaskedArray([1.0, 999.0, 3.0], mask=[False, True, False])
    whole = pandas.Series([1, None, 3], dtype="Int64")
    return [masked, list(masked), whole, whole.array, [1, pandas.NA, 3], whole.astype("Float64")]


@pytest.mark.parametrize("column", range(6))
def test_values_that_an_array_lacks_are_missing(lines, caplog, column):
    """Of numpy's masked arrays and of pandas' own types; NaN of a float column is a value."""
    scores = {"a": missing_columns()[column], "b": np.array([math.nan, 1.0, 2.0])}
    score_batch(scores, step=1, sample_index=[1, 2, 3])
    found = [(name, value, row) for name, value, _, row, *_ in found_in(lines()) if name == "a"]
    assert found == [("a", 1.0, 1), ("a", 3.0, 3)]
    assert caplog.records == []


def test_a_token_without_value_is_null_and_a_bad_row_is_left_out(fresh_process, tmp_path, caplog):
    """The other trajectories keep their values per token; one warning names them."""
    otel_rollout.configure(
        training_tokens=True, exporters=["spool"], keep=True, spool_dir=str(tmp_path / "s")
    )
    masked = np.ma.MaskedArray([0.5, 999.0], mask=[False, True])
    arrays = [[0.25, None, 1.0], ["bad"], masked, np.array([2.0], np.float32), None]
    score_batch({}, step=1, sample_index=np.arange(5), token_values={"logprob": arrays})
    otel_rollout.shutdown(60)
    written = [line for path in segments_below(tmp_path / "s") for line in lines_of(path) if is_batch(line)]
    spans = [span for line in written for each in expanded(line) for span in spans_of(each)]
    found = {
        span.attributes[semconv.SAMPLE_INDEX]: orjson.loads(span.attributes["rollout.tokens.logprob"])
        for span in spans
    }
    assert found == {0: [0.25, None, 1.0], 2: [0.5, None], 3: [2.0]}
    assert ["'logprob'" in record.message for record in caplog.records] == [True]


def test_a_name_that_is_left_out_is_named(lines, caplog):
    """The warning does not say that nothing is recorded."""
    score_batch({"x" * 251: [1.0], "good": [2.0]}, step=1, sample_index=[1])
    assert [each[0] for each in found_in(lines())] == ["good"]
    (record,) = caplog.records
    assert "left out a score" in record.message
    assert "xxx" in record.message


@pytest.mark.parametrize("ids", [iter(["a"]), {"a": 1}, {"a"}])
def test_trajectories_that_are_no_list_are_refused_with_one_warning(lines, caplog, ids):
    """Their order would not be that of the scores."""
    score_batch({"a": [1.0]}, trajectory=ids)
    assert lines() == []
    assert ["give a list of ids" in record.message for record in caplog.records] == [True]


def test_trajectories_that_are_unknown_or_unrecorded_are_counted(lines):
    """Each of their scores counts, by reason; the others are recorded."""
    good = f"00-{'a' * 32}-{'b' * 16}-01"
    unrecorded = f"00-{'c' * 32}-{'d' * 16}-00"
    ids = [good, None, unrecorded, "nonsense", f"00-{'0' * 32}-{'b' * 16}-01"]
    score_batch({"a": [1, 2, 3, 4, 5], "b": [1, None, 3, None, 5]}, trajectory=ids)
    skipped = otel_rollout.status().sampled_out
    assert [found[:2] for found in found_in(lines())] == [("a", 1.0), ("b", 1.0)]
    assert skipped == {"score_of_unknown": 4, "score_of_unrecorded": 2}


def test_scores_of_several_batches_are_pending_one_by_one(recorded):
    """A batch is one line, and counts as its scores until a target has them."""
    for step in (1, 2, 3):
        score_batch({"reward": [0.0, 0.5, 1.0, 0.5]}, step=step, sample_index=[1, 2, 3, 4])
    recorded()
    report = otel_rollout.status()
    count = report.exporters["test-file"]
    assert report.recorded == count.pending + count.delivered == 12


def test_rows_without_identity_are_counted(lines):
    """A row without step or dataset row is none that could be found."""
    score_batch({"a": [1, 2, 3]}, step=[1, None, 1], sample_index=[1, 2, None])
    skipped = otel_rollout.status().sampled_out
    assert [found[:4] for found in found_in(lines())] == [("a", 1.0, 1, 1)]
    assert skipped == {"score_of_unknown": 2}


def test_head_sampling_leaves_out_the_groups_that_it_leaves_out(fresh_process, tmp_path):
    """The same trajectories as with ``score()`` are recorded, and the others counted."""
    otel_rollout.configure(
        sample_rate=0.5, sample_seed="s", exporters=["spool"], spool_dir=str(tmp_path / "spool")
    )
    for index in range(20):
        score("single", 1, step=1, sample_index=index)
    score_batch({"batch": np.ones(20)}, step=1, sample_index=np.arange(20))
    report = otel_rollout.shutdown(60)
    found = found_in([line for path in segments_below(tmp_path / "spool") for line in segment_lines(path)])
    rows = {name: [row for each, _, _, row, *_ in found if each == name] for name in ("single", "batch")}
    assert rows["single"] == rows["batch"]
    assert 0 < len(rows["batch"]) < 20
    assert report.sampled_out == {"score_of_unrecorded": 2 * (20 - len(rows["batch"]))}
    assert report.recorded == report.started == 2 * len(rows["batch"])


def test_redaction_sees_texts_and_no_numbers(fresh_process, tmp_path, monkeypatch):
    """Names, labels, comments and rows are redacted before they are written."""
    seen: list[str] = []

    def redact(line: str) -> str:
        seen.append(line)
        return json.dumps(json.loads(line)).replace("sk-secret", "[hidden]")

    monkeypatch.setattr("tests.capture.test_score_batch.redact", redact, raising=False)
    otel_rollout.configure(
        redact="tests.capture.test_score_batch:redact", exporters=["spool"], spool_dir=str(tmp_path / "spool")
    )
    score_batch(
        {"label": ["sk-secret", "fine"], "number": np.full(2, 1 / 3)},
        step=1,
        sample_index=["uid sk-secret", "b"],
        comments={"number": ["because of sk-secret", None]},
    )
    otel_rollout.shutdown(60)
    written = [line for path in segments_below(tmp_path / "spool") for line in segment_lines(path)]
    (given_line,) = [line for line in seen if "score batch" in line]
    assert '"bytesValue":""' in given_line
    assert b"sk-secret" not in b"".join(written)
    assert sorted(found_in(written), key=repr) == sorted(
        [
            ("label", "[hidden]", 1, "uid [hidden]", None, ""),
            ("label", "fine", 1, "b", None, ""),
            ("number", 1 / 3, 1, "uid [hidden]", None, "because of [hidden]"),
            ("number", 1 / 3, 1, "b", None, ""),
        ],
        key=repr,
    )


def test_scores_stay_when_all_text_is_redacted(lines):
    """Scores of a loop, by identity and of a batch read equally: names, rows and numbers stay, texts go."""
    otel_rollout.configure("spool", redact="everything")
    row = {"step": 1, "sample_index": "gsm8k-1", "rollout_n": 0}
    scores = {"reward": 0.5, "lost": np.float64("nan"), "right": True, "verdict": "good"}
    with rollout_trace_attr(**row):
        for name, value in scores.items():
            score(name, value, comment="why")
    for name, value in scores.items():
        score(name, value, comment="why", **row)
    score_batch(
        {name: [value] for name, value in scores.items()}, comments={name: ["why"] for name in scores}, **row
    )
    told = {"reward": 0.5, "lost": "nan", "right": True, "verdict": "[redacted]"}
    expected = [(name, value, *row.values(), "[redacted]") for name, value in told.items()]
    written = lines()
    assert sorted(found_in(written), key=repr) == sorted(3 * expected, key=repr)
    assert not any(text in line for line in written for text in (b"good", b"why"))


DATA = '"bytesValue":""'


@pytest.mark.parametrize(
    ("found", "change"),
    [(DATA, ""), (DATA, "no line"), (DATA, '"bytesValue":"AAAA"'), ('{"stringValue":"y"},', "")],
)
def test_a_redaction_that_breaks_the_line_drops_the_batch(
    fresh_process, tmp_path, monkeypatch, found, change
):
    """Each of its scores is counted as dropped; nothing is written."""

    def redact(line: str) -> str:
        return line.replace(found, change) if "score batch" in line else line

    monkeypatch.setattr("tests.capture.test_score_batch.redact", redact, raising=False)
    otel_rollout.configure(
        redact="tests.capture.test_score_batch:redact", exporters=["spool"], spool_dir=str(tmp_path / "spool")
    )
    score_batch({"a": np.ones(3), "label": ["x", "y", "z"]}, step=1, sample_index=[1, 2, 3])
    report = otel_rollout.shutdown(60)
    assert report.dropped == {"redaction": 6}
    assert (report.started, report.recorded) == (6, 0)


def test_values_per_token_are_recorded_only_on_request(fresh_process, tmp_path):
    """The score ``training_tokens`` has their number; a trajectory without values has none."""
    for is_asked in (False, True):
        directory = tmp_path / str(is_asked)
        otel_rollout.configure(
            training_tokens=is_asked, exporters=["spool"], keep=True, spool_dir=str(directory)
        )
        arrays = [np.array([0.5, -1.0], np.float32), None, np.array([], np.float32)]
        score_batch(
            {"a": [1, 2, 3]}, step=1, sample_index=[1, 2, 3], token_values={"logprob": arrays, "bad": [1]}
        )
        otel_rollout.shutdown(60)
        found = found_in([line for path in segments_below(directory) for line in lines_of(path)])
        tokens = [(value, row) for name, value, _, row, *_ in found if name == "training_tokens"]
        assert tokens == ([(2.0, 1), (0.0, 3)] if is_asked else [])


def test_a_large_batch_of_values_per_token_takes_several_lines(fresh_process, tmp_path):
    """No line is larger than the journal, and each trajectory's values are in one of them."""
    otel_rollout.configure(
        training_tokens=True, exporters=["spool"], keep=True, spool_dir=str(tmp_path / "s")
    )
    arrays = [np.arange(50_000, dtype=np.float32) + row for row in range(40)]
    score_batch({}, step=1, sample_index=np.arange(40), token_values={"logprob": arrays})
    report = otel_rollout.shutdown(60)
    written = [line for path in segments_below(tmp_path / "s") for line in lines_of(path) if is_batch(line)]
    assert len(written) > 1
    assert max(map(len, written)) < 4 << 20
    spans = [span for line in written for each in expanded(line) for span in spans_of(each)]
    for span in spans:
        row = span.attributes[semconv.SAMPLE_INDEX]
        assert orjson.loads(span.attributes["rollout.tokens.logprob"]) == arrays[row].tolist()
    assert len(spans) == report.recorded == report.exporters["spool"].delivered == 40


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.one_of(
        st.none(), st.text(), st.integers(), st.lists(st.none() | st.text() | st.floats()), st.binary()
    ),
    others=st.one_of(
        st.none(),
        st.text(),
        st.integers(),
        st.lists(st.integers() | st.text()),
        st.dictionaries(st.text(), st.text()),
    ),
)
def test_no_argument_makes_it_raise(recording, values, others):
    """Whatever a caller passes, the caller goes on."""
    score_batch({"a": values, "b": others}, step=others, sample_index=values, comments={"a": others})
    score_batch({"a": values}, trajectory=others, token_values={"x": values})  # type: ignore[arg-type]
    score_batch(others or {}, step=1, sample_index=values)  # type: ignore[arg-type]


@pytest.fixture
def recording(fresh_process, tmp_path) -> None:
    otel_rollout.configure(exporters=["spool"], training_tokens=True, spool_dir=str(tmp_path / "spool"))


def test_without_tracing_nothing_happens():
    """A batch outside any run is ignored."""
    score_batch({"a": [1]}, step=1, sample_index=[1])


def test_batches_of_several_threads_are_whole(fresh_process, tmp_path):
    """Lines do not mix, and all scores arrive."""
    otel_rollout.configure(exporters=["spool"], spool_dir=str(tmp_path / "spool"))

    def record(step: int) -> None:
        for number in range(20):
            score_batch({"a": np.full(50, step)}, step=step, sample_index=np.arange(50) + 50 * number)

    threads = [threading.Thread(target=record, args=(step,)) for step in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with rollout_trace_attr():
        pass
    report = otel_rollout.shutdown(60)
    found = found_in([line for path in segments_below(tmp_path / "spool") for line in segment_lines(path)])
    assert len(set(found)) == len(found) == 4000
    assert report.recorded == 4001
