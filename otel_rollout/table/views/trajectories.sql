-- Each trajectory: identity, state, duration, counts, reward and broken prefixes.
WITH counted AS (
  SELECT
    call.trace_id,
    count(*) FILTER (WHERE call.kind = 'LLM') AS turns,
    count(*) FILTER (WHERE call.kind = 'TOOL') AS tool_calls,
    count(*) FILTER (WHERE call.kind = 'TOOL' AND call.status = 'error') AS tool_errors,
    sum(coalesce(call.tokens_in, inner_tokens.tokens_in)) FILTER (WHERE call.kind = 'LLM') AS tokens_in,
    sum(coalesce(call.tokens_out, inner_tokens.tokens_out)) FILTER (WHERE call.kind = 'LLM') AS tokens_out,
    sum(coalesce(call.tokens_cached, inner_tokens.tokens_cached)) FILTER (WHERE call.kind = 'LLM') AS tokens_cached,
    count(call.break_token) FILTER (WHERE call.kind = 'LLM') AS broken_turns,
    min(coalesce(call.policy_version_min, call.policy_version_max)) AS policy_version_min,
    max(coalesce(call.policy_version_max, call.policy_version_min)) AS policy_version_max
  FROM spans AS call LEFT JOIN inner_calls
    ON call.trace_id = inner_calls.trace_id AND call.span_id = inner_calls.span_id
  LEFT JOIN inner_tokens ON call.trace_id = inner_tokens.trace_id AND call.span_id = inner_tokens.span_id
  WHERE call.kind IN ('LLM', 'TOOL') AND inner_calls.span_id IS NULL
  GROUP BY call.trace_id
)
SELECT
  root.trace_id, root.run_id, root.project, root.experiment, root.step, root.sample_index, root.rollout_n,
  root.validate, root.path, root.group_path,
  root.group_id, root.group_size, root.agent_name,
  least(
    coalesce(root.policy_version_min, counted.policy_version_min),
    coalesce(counted.policy_version_min, root.policy_version_min)
  ) AS policy_version_min,
  greatest(
    coalesce(root.policy_version_max, counted.policy_version_max),
    coalesce(counted.policy_version_max, root.policy_version_max)
  ) AS policy_version_max, root.name,
  root.state, root.error_type, root.error_message, root.start_time,
  CASE WHEN root.start_time IS NOT NULL THEN root.duration_ns / 1e9 END AS seconds,
  coalesce(counted.turns, 0) AS turns, coalesce(counted.tool_calls, 0) AS tool_calls,
  coalesce(counted.tool_errors, 0) AS tool_errors,
  CAST(counted.tokens_in AS BIGINT) AS tokens_in, CAST(counted.tokens_out AS BIGINT) AS tokens_out,
  CAST(counted.tokens_cached AS BIGINT) AS tokens_cached, rewards.value AS reward,
  rewards.label AS reward_label,
  coalesce(counted.broken_turns, 0) AS broken_turns
FROM roots AS root
  LEFT JOIN counted ON root.trace_id = counted.trace_id
  LEFT JOIN (SELECT trace_id, value, label FROM newest_scores WHERE name = 'reward') AS rewards
    ON root.trace_id = rewards.trace_id
