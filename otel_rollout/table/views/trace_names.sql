-- What the spans of each trace name, as a list.
SELECT
  trace_id AS named_trace,
  array_agg({
    'run_id': run_id, 'project': project, 'experiment': experiment, 'step': step, 'beginning': beginning,
    'may_be_trajectory': may_be_trajectory
  }) AS names
FROM span_names
GROUP BY trace_id
