-- What the time of each trajectory went into, in seconds: from its start to its end, or to that of its last reward.
-- Waiting is what no call takes of it. The phases add up to `seconds`. If it is not known when some call ran, waiting is
-- null, and so is each phase without a call, or with a call like that.
SELECT
  trace_id, run_id, project, experiment, step, sample_index, rollout_n, validate,
  CASE
    WHEN start_time IS NOT NULL AND duration_ns IS NOT NULL
      THEN greatest(duration_ns, coalesce(last_ns - start_ns, 0)) / 1e9
  END AS seconds,
  CASE WHEN start_time IS NOT NULL THEN coalesce(generate_ns, CASE WHEN untimed_calls IS NULL THEN 0 END) / 1e9 END
    AS generate_seconds,
  CASE WHEN start_time IS NOT NULL THEN coalesce(tool_ns, CASE WHEN untimed_calls IS NULL THEN 0 END) / 1e9 END
    AS tool_seconds,
  CASE WHEN start_time IS NOT NULL THEN coalesce(reward_ns, CASE WHEN untimed_calls IS NULL THEN 0 END) / 1e9 END
    AS reward_seconds,
  CASE
    WHEN start_time IS NOT NULL AND duration_ns IS NOT NULL AND untimed_calls IS NULL
      THEN (greatest(duration_ns, coalesce(last_ns - start_ns, 0)) - coalesce(inside_ns, 0)) / 1e9
  END AS waiting_seconds
FROM roots LEFT JOIN phase_figures ON trace_id = phase_trace
