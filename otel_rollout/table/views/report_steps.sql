-- What the trajectories of each step come to in a report. Of times, a trajectory counts that has ended. The mean of a
-- phase is null if it is not known of such a one, and leaves out those whose process ended first.
SELECT
  step, step_text, validate, count(*) AS trajectories, count(*) FILTER (WHERE state = 'error') AS failed,
  count(*) FILTER (WHERE state = 'running') AS running,
  count(reward) AS reward_count,
  count(*) FILTER (WHERE state <> 'running' AND has_no_reward) AS reward_missing,
  count(*) FILTER (WHERE has_odd_reward) AS reward_odd,
  avg(reward) AS reward_mean, stddev_samp(reward) AS reward_std, min(reward) AS reward_min,
  percentile_cont(0.1) WITHIN GROUP (ORDER BY reward) AS reward_p10,
  percentile_cont(0.5) WITHIN GROUP (ORDER BY reward) AS reward_p50,
  percentile_cont(0.9) WITHIN GROUP (ORDER BY reward) AS reward_p90, max(reward) AS reward_max,
  avg(turns) AS turns_mean, stddev_samp(turns) AS turns_std, max(turns) AS turns_max,
  CAST(sum(tokens_in) AS BIGINT) AS tokens_in, CAST(sum(tokens_out) AS BIGINT) AS tokens_out,
  CAST(sum(turns) AS BIGINT) AS replies, CAST(sum(replies_ended) AS BIGINT) AS replies_ended,
  CAST(sum(truncated) AS BIGINT) AS replies_truncated,
  CAST(sum(tool_calls) AS BIGINT) AS tool_calls, CAST(coalesce(sum(tool_calls_known), 0) AS BIGINT) AS tool_calls_known,
  stddev_samp(tool_calls) AS tool_calls_std,
  CASE WHEN sum(tool_calls) > 0 THEN CAST(sum(tool_errors) FILTER (WHERE tool_calls > 0) AS BIGINT) ELSE 0 END
    AS tool_errors, CAST(sum(unparsed) AS BIGINT) AS parse_failures,
  count(seconds) AS seconds_count, percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) AS seconds_p50,
  percentile_cont(0.95) WITHIN GROUP (ORDER BY seconds) AS seconds_p95, max(seconds) AS seconds_max,
  first_value(CASE WHEN seconds IS NOT NULL THEN path END ORDER BY seconds DESC NULLS LAST, path)
    AS seconds_slowest,
  CASE WHEN bool_and(generate_seconds IS NOT NULL OR seconds IS NULL OR has_lost_calls)
    THEN avg(generate_seconds) FILTER (WHERE seconds IS NOT NULL AND NOT has_lost_calls) END AS seconds_generate,
  CASE WHEN bool_and(tool_seconds IS NOT NULL OR seconds IS NULL OR has_lost_calls)
    THEN avg(tool_seconds) FILTER (WHERE seconds IS NOT NULL AND NOT has_lost_calls) END AS seconds_tool,
  CASE WHEN bool_and(reward_seconds IS NOT NULL OR seconds IS NULL OR has_lost_calls)
    THEN avg(reward_seconds) FILTER (WHERE seconds IS NOT NULL AND NOT has_lost_calls) END AS seconds_reward,
  CASE WHEN bool_and(waiting_seconds IS NOT NULL OR seconds IS NULL OR has_lost_calls)
    THEN avg(waiting_seconds) END AS seconds_waiting,
  count(policy_lag) AS lag_count, avg(policy_lag) AS lag_mean, max(policy_lag) AS lag_max,
  count(*) FILTER (WHERE has_several_policies) AS lag_mixed
FROM report_rows
GROUP BY validate, step, step_text
