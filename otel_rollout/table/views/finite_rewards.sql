-- Each trajectory, with its reward unless that is NaN, infinite or beyond what can be summed.
SELECT
  *, CASE WHEN abs(reward) < 1e300 THEN reward END AS finite_reward,
  coalesce(isnan(reward) OR abs(reward) >= 1e300, false)
    OR (reward IS NULL AND coalesce(lower(reward_label) IN ('nan', 'inf', '-inf'), false)) AS has_odd_reward
FROM trajectories
