-- The time of calls in each trajectory, in phases that do not overlap. Time in which several calls run belongs to the one
-- that began first, and of those to the longest: a tool's model call is part of the tool. A call counts from the
-- trajectory's start to its end; a reward that is computed after its end counts, too.
WITH clipped AS (
  SELECT
    call.trace_id, call.span_id, call.kind, coalesce(call.tool_name, call.name) AS name,
    greatest(call.start_ns, root.start_ns) AS start_ns,
    CASE
      WHEN call.kind = 'EVALUATOR' OR root.duration_ns IS NULL THEN call.start_ns + call.duration_ns
      ELSE least(call.start_ns + call.duration_ns, root.start_ns + root.duration_ns)
    END AS end_ns
  FROM timed_spans AS call JOIN roots AS root ON call.trace_id = root.trace_id
  WHERE call.kind IN ('LLM', 'TOOL', 'EVALUATOR') AND call.duration_ns > 0
), calls AS (
  SELECT
    *,
    max(end_ns) OVER (
      PARTITION BY trace_id ORDER BY start_ns, end_ns DESC, kind, name, span_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS earlier_end_ns
  FROM clipped
), own AS (
  SELECT trace_id, kind, name, greatest(start_ns, coalesce(earlier_end_ns, start_ns)) AS start_ns, end_ns FROM calls
)
SELECT
  trace_id, start_ns, end_ns, kind,
  CASE kind WHEN 'LLM' THEN 'generate' WHEN 'TOOL' THEN 'tool' ELSE 'reward' END AS phase, name
FROM own
WHERE end_ns > start_ns
