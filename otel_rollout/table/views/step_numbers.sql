-- Numbers of each step of training or validation, for the curves of a tracker. Groups and rewards count as in steps.
SELECT
  step, validate, count(*) AS trajectories, count(*) FILTER (WHERE state = 'error') AS failed,
  count(*) FILTER (WHERE state = 'running') AS running, avg(finite_reward) AS reward_mean,
  stddev_samp(finite_reward) AS reward_std, min(finite_reward) AS reward_min, max(finite_reward) AS reward_max,
  avg(turns) AS turns_mean, sum(tool_calls) AS tool_calls,
  CASE WHEN sum(tool_calls) > 0 THEN CAST(sum(tool_errors) FILTER (WHERE tool_calls > 0) AS BIGINT) ELSE 0 END AS tool_errors,
  sum(tokens_in) AS tokens_in, sum(tokens_out) AS tokens_out,
  percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) AS seconds_p50,
  percentile_cont(0.95) WITHIN GROUP (ORDER BY seconds) AS seconds_p95, max(seconds) AS seconds_max,
  max((date_part('epoch', start_time) + coalesce(seconds, 0)) * 1000) AS end_ms,
  count(DISTINCT group_name) AS groups,
  count(DISTINCT CASE WHEN rewards > 1 AND low = high THEN group_name END) AS groups_without_spread,
  coalesce(sum(truncated), 0) AS replies_truncated
FROM (
  SELECT
    *, CASE WHEN sample_index IS NOT NULL THEN group_path END AS group_name,
    count(finite_reward) OVER of_group AS rewards, min(finite_reward) OVER of_group AS low,
    max(finite_reward) OVER of_group AS high
  FROM finite_rewards LEFT JOIN reply_figures USING (trace_id)
  WINDOW of_group AS (PARTITION BY validate, group_path)
) AS of_step
GROUP BY step, validate
