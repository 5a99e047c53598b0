-- What the model calls and tool calls of each trace sum up to. Tool errors are null where no call has a known status.
SELECT
  trace_id AS call_trace,
  count(*) FILTER (WHERE kind = 'LLM') AS turns,
  count(*) FILTER (WHERE kind = 'TOOL') AS tool_calls, count(status) FILTER (WHERE kind = 'TOOL') AS tool_calls_known,
  CASE WHEN count(status) FILTER (WHERE kind = 'TOOL') > 0 THEN count(*) FILTER (WHERE kind = 'TOOL' AND status = 'error') END
    AS tool_errors,
  CAST(sum(tokens_in) FILTER (WHERE kind = 'LLM') AS BIGINT) AS tokens_in,
  CAST(sum(tokens_out) FILTER (WHERE kind = 'LLM') AS BIGINT) AS tokens_out,
  CAST(sum(tokens_cached) FILTER (WHERE kind = 'LLM') AS BIGINT) AS tokens_cached,
  count(break_token) FILTER (WHERE kind = 'LLM') AS broken_turns,
  min(coalesce(policy_version_min, policy_version_max)) AS call_version_min,
  max(coalesce(policy_version_max, policy_version_min)) AS call_version_max,
  count(finish_reason) FILTER (WHERE kind = 'LLM') AS replies_ended,
  count(*) FILTER (WHERE kind = 'LLM' AND reached_limit) AS truncated
FROM counted_calls
GROUP BY trace_id
