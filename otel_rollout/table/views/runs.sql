-- Each run: the processes of one job that recorded for one target. Rewards are those of training; one that is NaN or
-- infinite does not count.
SELECT
  run_id, project, experiment, min(step) AS first_step, max(step) AS last_step, count(*) AS trajectories,
  count(*) FILTER (WHERE validate) AS validations, count(*) FILTER (WHERE state = 'error') AS failed,
  count(*) FILTER (WHERE state = 'running') AS running,
  avg(finite_reward) FILTER (WHERE NOT validate) AS reward_mean,
  count(finite_reward) FILTER (WHERE NOT validate) AS rewarded,
  CAST(sum(tokens_in) AS BIGINT) AS tokens_in, CAST(sum(tokens_out) AS BIGINT) AS tokens_out,
  min(start_time) AS start_time, max(start_time) AS last_start_time
FROM finite_rewards
GROUP BY run_id, project, experiment
