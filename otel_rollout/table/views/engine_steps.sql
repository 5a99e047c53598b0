-- The engine's requests of each step that has some: seconds of a trajectory are means, quantiles are of a request.
WITH timed AS (
  SELECT
    of_trajectory.run_id, of_trajectory.project, of_trajectory.experiment, of_trajectory.validate, of_trajectory.step,
    of_trajectory.step_text,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY request.queue_seconds) AS queue_p50,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY request.queue_seconds) AS queue_p95,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY request.first_token_seconds) AS first_token_p50,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY request.first_token_seconds) AS first_token_p95
  FROM engine_requests AS request JOIN engine_time AS of_trajectory ON request.trace_id = of_trajectory.trace_id
  GROUP BY 1, 2, 3, 4, 5, 6
), summed AS (
  SELECT
    run_id, project, experiment, validate, step, step_text, count(requests) AS trajectories,
    CAST(sum(requests) AS BIGINT) AS requests,
    CAST(sum(turns - coalesce(calls_with_request, 0)) AS BIGINT) AS calls_without_request,
    avg(queue_seconds) AS queue_seconds, avg(prefill_seconds) AS prefill_seconds, avg(decode_seconds) AS decode_seconds
  FROM counted_rows LEFT JOIN request_figures ON trace_id = request_trace
  GROUP BY 1, 2, 3, 4, 5, 6
)
SELECT summed.*, timed.queue_p50, timed.queue_p95, timed.first_token_p50, timed.first_token_p95
FROM summed JOIN timed
  ON (summed.run_id IS NOT DISTINCT FROM timed.run_id) AND (summed.project IS NOT DISTINCT FROM timed.project)
    AND (summed.experiment IS NOT DISTINCT FROM timed.experiment)
    AND (summed.validate IS NOT DISTINCT FROM timed.validate) AND (summed.step IS NOT DISTINCT FROM timed.step)
    AND (summed.step_text IS NOT DISTINCT FROM timed.step_text)
