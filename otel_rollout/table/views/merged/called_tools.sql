-- The calls of each trajectory by tool and error, from its list.
SELECT
  trace_id, run_id, project, experiment, step, step_text, sample_index, validate, group_path,
  tool['tool_name'] AS tool_name, tool['error_type'] AS error_type, tool['error'] AS error, tool['is_of_run'] AS is_of_run,
  tool['calls'] AS calls, tool['known'] AS known, tool['timed'] AS timed, tool['duration_ns'] AS duration_ns
FROM (
  SELECT
    trace_id, run_id, project, experiment, step, step_text, sample_index, validate, group_path, unnest(tools) AS tool
  FROM merged_rows
) AS called
