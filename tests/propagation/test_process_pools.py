"""Trajectories in pools of processes, by every method that submits work."""

import inspect
import multiprocessing
import multiprocessing.pool
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.pool import Pool, ThreadPool
from pathlib import Path

import pytest

from otel_rollout import rollout_trace_attr, rollout_trace_op
from otel_rollout.record.propagation import instrument, pools
from tests.fake_server import serving
from tests.propagation.pool_functions import Refused, grade, plain, refuse, request

ROOT = Path(__file__).parents[2]
JOB = Path(__file__).parent / "programs" / "pool_job.py"
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # since Python 3.12

WAYS = {
    "apply": lambda pool: [pool.apply(grade, (1,), {"other": 1}), pool.apply(grade, (2,), {"other": 1})],
    "apply_async": lambda pool: [pool.apply_async(func=grade, args=(n, 1)).get(60) for n in (1, 2)],
    "map": lambda pool: [n + 1 for n in pool.map(grade, [1, 2])],
    "map_async": lambda pool: [n + 1 for n in pool.map_async(grade, [1, 2]).get(60)],
    "starmap": lambda pool: pool.starmap(grade, [(1, 1), (2, 1)]),
    "starmap_async": lambda pool: pool.starmap_async(grade, [(1, 1), (2, 1)], chunksize=2).get(60),
    "imap": lambda pool: [n + 1 for n in pool.imap(grade, [1, 2])],
    "imap in chunks": lambda pool: [n + 1 for n in pool.imap(grade, [1, 2], chunksize=2)],
    "imap_unordered": lambda pool: sorted(n + 1 for n in pool.imap_unordered(grade, [1, 2])),
}
EXECUTED = {
    "submit": lambda pool: [pool.submit(grade, n, other=1).result(60) for n in (1, 2)],
    "executor's map": lambda pool: list(pool.map(grade, [1, 2], [1, 1], chunksize=2)),
}


@pytest.fixture(autouse=True)
def instrumented(fresh_process):
    instrument.instrument()
    yield
    instrument.uninstrument()


@pytest.fixture(scope="module", params=["fork", "spawn"])
def start(request):
    return multiprocessing.get_context(request.param)


def in_pool(way: str, start: multiprocessing.context.BaseContext) -> list[int]:
    if way in EXECUTED:
        with ProcessPoolExecutor(1, mp_context=start) as executor:
            return EXECUTED[way](executor)
    with start.Pool(1) as pool:
        results = WAYS[way](pool)
        pool.close()
        pool.join()
    return results


def check(spans, parent, other_process=True):
    """Check for one trace, its identity, and scores below their operations."""
    grades = [s for s in spans if s.name == "grade"]
    assert len(grades) == 2
    for span in grades:
        assert span.span.trace_id.hex() == parent.trace_id
        assert span.span.parent_span_id.hex() == f"{parent.root.get_span_context().span_id:016x}"
        assert (span.attributes["rollout.step"], span.attributes["rollout.sample_index"]) == (4, "row-7")
    scores = [s for s in spans if s.name == "score reward"]
    assert [s.attributes["gen_ai.evaluation.score.value"] for s in scores] == [1.0, 2.0]
    if other_process:
        assert {s.attributes["rollout.score_origin"] for s in scores} == {"process"}


def test_request_of_pool_work_carries_the_submitting_trajectory(start, tracing):
    """A spawned process inherits no patches; it patches its own clients."""
    pytest.importorskip("urllib3")
    with serving() as server, rollout_trace_attr(step=4) as trajectory:
        with ProcessPoolExecutor(1, mp_context=start) as executor:
            assert executor.submit(request, server.uri).result(60) == 200
        assert [sent.headers["traceparent"] for sent in server.received] == [trajectory.id]


@pytest.mark.parametrize("way", [*WAYS, *EXECUTED])
def test_work_in_a_process_pool_belongs_to_the_submitting_trajectory(way, start, recorded):
    """Results do not change; operations and scores are part of the trajectory."""
    with rollout_trace_attr(sample_index="row-7", step=4) as trajectory:
        assert in_pool(way, start) == [2, 3]
    check(recorded(), trajectory)


@pytest.mark.parametrize("way", WAYS)
def test_work_in_multiprocessing_thread_pool_belongs_to_the_submitting_trajectory(way, recorded):
    """``ThreadPool`` has the interface of ``Pool``, and runs work in threads."""
    with rollout_trace_attr(sample_index="row-7", step=4) as trajectory, ThreadPool(1) as pool:
        assert WAYS[way](pool) == [2, 3]
    check(recorded(), trajectory, other_process=False)


def test_calls_of_one_pool_belong_to_their_own_trajectories(recorded, start):
    """The pool serves three trajectories, one of them unrecorded, and other work."""
    with start.Pool(1) as pool:
        traces = []
        for number in range(3):
            with rollout_trace_attr(step=number) as trajectory:
                assert pool.map(grade, [number]) == [number]
            traces.append(trajectory.trace_id)
        with rollout_trace_attr(trace=False):
            assert pool.map(grade, [7]) == [7]
        assert pool.map(grade, [8]) == [8]
        assert pool.map(plain, [1])[0][1] is False
        pool.close()
        pool.join()
    grades = [s for s in recorded() if s.name == "grade"]
    assert sorted((s.span.trace_id.hex() in traces, s.output) for s in grades) == [
        (False, 8),
        (True, 0),
        (True, 1),
        (True, 2),
    ]


@pytest.mark.parametrize("inside", [True, False])
def test_errors_of_a_pool_do_not_change(start, tracing, inside):
    """Exceptions of the work arrive, and work that cannot be pickled fails."""
    with start.Pool(1) as pool, rollout_trace_attr(trace=inside):
        with pytest.raises(Refused, match="not 3"):
            pool.apply(refuse, (3,))
        with pytest.raises(Refused, match="not 1"):
            pool.map(refuse, [1, 2])
        with pytest.raises((pickle.PicklingError, AttributeError), match=r"lambda|local object"):
            pool.apply(lambda: None)
        with pytest.raises(TypeError):
            pool.map()
        assert pool.apply(abs, (-1,)) == 1


def test_instrument_keeps_signatures_and_uninstrument_restores_methods():
    """All patched methods are compared."""
    instrument.uninstrument()
    before = {name: vars(Pool)[name] for name in pools._POOL_METHODS}
    submit = ProcessPoolExecutor.submit
    signatures = {name: inspect.signature(method) for name, method in before.items()}
    instrument.instrument()
    assert {name: inspect.signature(vars(Pool)[name]) for name in before} == signatures
    assert ProcessPoolExecutor.submit is not submit
    instrument.uninstrument()
    assert {name: vars(Pool)[name] for name in before} == before
    assert ProcessPoolExecutor.submit is submit


def test_work_submitted_by_an_operation_is_its_child(recorded):
    """The current span at submission is the parent."""

    @rollout_trace_op(name="outer")
    def outer(pool: Pool) -> list[int]:
        return pool.map(grade, [1, 2])

    with multiprocessing.get_context("fork").Pool(2) as pool, rollout_trace_attr(step=1):
        outer(pool)
        pool.close()
        pool.join()
    spans = recorded()
    (above,) = (s for s in spans if s.name == "outer")
    assert {s.span.parent_span_id for s in spans if s.name == "grade"} == {above.span.span_id}


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_spans_of_pool_processes_are_delivered_when_the_job_ends(method, tmp_path, test_exporters):
    """Pool processes exit or are killed; all spans arrive, and the report counts them."""
    delivered = tmp_path / "delivered.jsonl"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ['PYTHONPATH']}"}
    command = [sys.executable, str(JOB), method, str(delivered)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert len(delivered.read_text().splitlines()) == 82
