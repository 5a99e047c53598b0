-- The reward of each trajectory that has one.
SELECT trace_id AS reward_trace, value AS reward, label AS reward_label FROM newest_scores WHERE name = 'reward'
