-- What the engine's requests of each trajectory with a request took. A model call without a request has none below it:
-- its engine does not trace, or the request was aborted.
SELECT
  trace_id, run_id, project, experiment, step, step_text, sample_index, rollout_n, validate, requests,
  turns - coalesce(calls_with_request, 0) AS calls_without_request, queue_seconds, prefill_seconds,
  decode_seconds, first_token_seconds
FROM counted_rows LEFT JOIN request_figures ON trace_id = request_trace
WHERE requests IS NOT NULL
