-- Each trajectory with what its calls sum up to; without calls, these are zero. Tool errors are null where it called tools,
-- and no call has a known status. The versions of the policy are the trajectory's and those of its calls.
SELECT
  * EXCLUDE (call_trace, call_version_min, call_version_max) REPLACE (
    least(coalesce(policy_version_min, call_version_min), coalesce(call_version_min, policy_version_min))
      AS policy_version_min,
    greatest(coalesce(policy_version_max, call_version_max), coalesce(call_version_max, policy_version_max))
      AS policy_version_max,
    coalesce(turns, 0) AS turns, coalesce(tool_calls, 0) AS tool_calls,
    CASE WHEN tool_calls > 0 THEN tool_errors ELSE 0 END AS tool_errors, coalesce(broken_turns, 0) AS broken_turns,
    coalesce(replies_ended, 0) AS replies_ended, coalesce(truncated, 0) AS truncated
  ),
  CASE WHEN start_time IS NOT NULL THEN duration_ns / 1e9 END AS seconds
FROM roots LEFT JOIN call_figures ON trace_id = call_trace
