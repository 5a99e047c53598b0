-- The calls of each trajectory by tool and error, with the trajectory's identity. Reports name an error by its class, health
-- one without a class by its message. Calls of a trajectory of another run, inside this one, are not its own.
SELECT
  root.trace_id, root.run_id, root.project, root.experiment, root.step, root.step_text, root.sample_index, root.validate,
  root.group_path, counted.tool_name, counted.error_type, counted.error,
  (counted.run_id IS NOT DISTINCT FROM root.run_id) AS is_of_run,
  counted.calls, counted.known, counted.timed, counted.duration_ns
FROM (
  SELECT
    trace_id, tool_name, run_id, CASE WHEN status = 'error' THEN coalesce(error_type, 'error') END AS error_type,
    CASE WHEN status = 'error' THEN coalesce(
      error_type, left(regexp_replace(split_part(error_message, chr(10), 1), '[0-9]+', '#', 'g'), 60), 'an error'
    ) END AS error,
    count(*) AS calls, count(status) AS known, count(duration_ns) FILTER (WHERE start_time IS NOT NULL) AS timed,
    CAST(sum(duration_ns) FILTER (WHERE start_time IS NOT NULL) AS BIGINT) AS duration_ns
  FROM spans
  WHERE kind = 'TOOL' AND trace_id IN (SELECT trace_id FROM roots)
  GROUP BY 1, 2, 3, 4, 5
) AS counted JOIN roots AS root ON counted.trace_id = root.trace_id
