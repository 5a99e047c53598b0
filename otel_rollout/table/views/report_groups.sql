-- How the rewards of each step's groups differ. `excess` is a group's total beyond what the step's mean reward gives it.
SELECT
  validate, step, step_text, count(*) AS groups, count(spread) AS compared,
  count(*) FILTER (WHERE spread = 0) AS without_spread,
  count(*) FILTER (WHERE rewards > 0) AS rewarded, sum(rewards) AS rewards, sum(excess * excess) AS squares
FROM (
  SELECT
    *, total - rewards * sum(total) OVER (PARTITION BY validate, step, step_text)
      / nullif(sum(rewards) OVER (PARTITION BY validate, step, step_text), 0) AS excess
  FROM (
    SELECT
      validate, step, step_text, CASE WHEN count(reward) > 1 THEN max(reward) - min(reward) END AS spread,
      count(reward) AS rewards, sum(reward) AS total
    FROM report_rows
    WHERE sample_index IS NOT NULL
    GROUP BY validate, step, step_text, group_path
  ) AS of_group
) AS compared_group
GROUP BY validate, step, step_text
