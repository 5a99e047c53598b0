-- Each trajectory, with its reward unless that is NaN, infinite or so large that its square is infinite.
SELECT
  *, CASE WHEN abs(reward) < 1e150 THEN reward END AS finite_reward,
  coalesce(isnan(reward) OR abs(reward) >= 1e150, false)
    OR (reward IS NULL AND coalesce(lower(reward_label) IN ('nan', 'inf', '-inf'), false)) AS has_odd_reward
FROM trajectories
