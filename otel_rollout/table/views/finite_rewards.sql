-- Each trajectory, with its reward unless that is NaN or infinite.
SELECT *, CASE WHEN abs(reward) < 1e300 THEN reward END AS finite_reward FROM trajectories
