-- The calls of each trajectory that has some, by tool and error, as a list.
SELECT
  trace_id AS tool_trace,
  array_agg({
    'tool_name': tool_name, 'error_type': error_type, 'error': error, 'is_of_run': is_of_run, 'calls': calls,
    'known': known, 'timed': timed, 'duration_ns': duration_ns
  }) AS tools
FROM called_tools
GROUP BY trace_id
