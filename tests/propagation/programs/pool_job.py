"""Record in process pools: ``pool_job.py <start method> <file to deliver to>``."""

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

import otel_rollout
from tests.propagation.pool_functions import grade

if __name__ == "__main__":
    otel_rollout.configure({"test-file": {"path": sys.argv[2]}}, project_name="p")
    otel_rollout.instrument()
    start = multiprocessing.get_context(sys.argv[1])
    with otel_rollout.rollout_trace_attr(step=1), ProcessPoolExecutor(2, mp_context=start) as executor:
        assert sum(executor.map(grade, range(20))) == 190
    with otel_rollout.rollout_trace_attr(step=1), start.Pool(2) as pool:  # its processes are killed
        assert sum(pool.map(grade, range(20))) == 190
    report = otel_rollout.shutdown(60)
    counts = report.recorded, report.lost, report.undelivered, report.unfinished
    assert counts == (82, 0, 0, 0), report.summary()
