-- The newest score of each name of each trajectory, from every source.
WITH parts AS (
  SELECT trace_id, span_id
  FROM spans
  WHERE kind = 'AGENT' AND validate IS NOT NULL AND NOT is_root AND attributes LIKE '%"rollout.begins_trajectory":true%'
), in_trace AS (
  SELECT
    given.trace_id, given.score_name AS name, given.score_value AS value, given.score_label AS label,
    given.score_comment AS comment, given.score_origin AS origin, given.start_ns AS time_ns, given.span_id,
    part.span_id AS part_id, given.path
  FROM spans AS given LEFT JOIN parts AS part
    ON given.trace_id = part.trace_id AND given.parent_span_id = part.span_id
  WHERE given.score_name IS NOT NULL AND given.score_by = 'trace'
), candidates AS (
  SELECT
    in_trace.trace_id, in_trace.name, in_trace.value, in_trace.label, in_trace.comment, in_trace.origin,
    in_trace.time_ns, true AS is_dated, 3 AS place, 'trace' AS source, in_trace.trace_id AS score_trace_id,
    in_trace.span_id AS score_span_id
  FROM in_trace JOIN roots AS root ON in_trace.trace_id = root.trace_id
  WHERE (in_trace.part_id IS NULL OR in_trace.part_id = root.span_id)
    AND (in_trace.path IS NULL OR in_trace.path = root.path)
  UNION ALL
  SELECT
    trajectory AS trace_id, name, value, label, comment, origin, time_ns, true AS is_dated, 2 AS place,
    'identity' AS source, trace_id AS score_trace_id, span_id AS score_span_id
  FROM identity_scores
  WHERE matches = 1
  UNION ALL
  SELECT
    trace_id, repeated['name'] AS name, repeated['value'] AS value, repeated['label'] AS label, NULL AS comment,
    NULL AS origin, coalesce(repeated['time_ns'], end_ns) AS time_ns, repeated['time_ns'] IS NOT NULL AS is_dated,
    1 AS place, 'root' AS source, NULL AS score_trace_id, NULL AS score_span_id
  FROM (SELECT trace_id, start_ns + duration_ns AS end_ns, unnest(repeated_scores) AS repeated FROM roots) AS of_roots
), ranked AS (
  SELECT
    *,
    row_number() OVER (
      PARTITION BY trace_id, name
      ORDER BY is_dated DESC, time_ns DESC, coalesce(comment, '') <> '' DESC, place DESC, score_span_id DESC,
        score_trace_id DESC
    ) AS rank
  FROM candidates
)
SELECT trace_id, name, value, label, comment, origin, source, time_ns, score_trace_id, score_span_id
FROM ranked
WHERE rank = 1
