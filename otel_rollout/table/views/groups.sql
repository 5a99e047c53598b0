-- Each group: the trajectories of one dataset row in one step. A reward that is NaN or infinite does not count; a
-- spread needs two that do.
SELECT
  run_id, project, experiment, validate, step, step_text, sample_index, group_path AS path,
  count(*) AS trajectories, count(*) FILTER (WHERE state = 'error') AS failed,
  count(*) FILTER (WHERE state = 'running') AS running, avg(finite_reward) AS reward_mean,
  min(finite_reward) AS reward_min, max(finite_reward) AS reward_max,
  CASE WHEN count(finite_reward) > 1 THEN max(finite_reward) - min(finite_reward) END AS reward_spread,
  count(finite_reward) AS rewarded, avg(turns) AS turns_mean,
  CAST(sum(tool_calls) AS BIGINT) AS tool_calls,
  CASE WHEN sum(tool_calls) > 0 THEN CAST(sum(tool_errors) FILTER (WHERE tool_calls > 0) AS BIGINT) ELSE 0 END AS tool_errors,
  CAST(sum(tokens_in) AS BIGINT) AS tokens_in, CAST(sum(tokens_out) AS BIGINT) AS tokens_out,
  avg(seconds) AS seconds_mean, min(start_time) AS start_time
FROM finite_rewards
GROUP BY run_id, project, experiment, validate, step, step_text, sample_index, group_path
