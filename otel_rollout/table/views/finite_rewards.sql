-- Each trajectory, with its reward unless that is NaN, infinite or so large that its square is infinite.
SELECT
  *, CASE WHEN abs(reward) < 1e150 THEN reward END AS finite_reward,
  coalesce(NOT abs(coalesce(reward, TRY_CAST(reward_label AS DOUBLE))) < 1e150, false) AS has_odd_reward
FROM trajectories
