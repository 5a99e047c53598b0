-- The newest score of each name of each trajectory, with the trajectory's identity.
SELECT
  score.trace_id, root.run_id, root.project, root.experiment, root.step, root.sample_index, root.rollout_n,
  root.validate, score.name, score.value, score.label, score.comment, score.origin, score.source, score.time_ns
FROM newest_scores AS score JOIN roots AS root ON score.trace_id = root.trace_id
