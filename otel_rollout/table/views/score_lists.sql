-- The newest scores of each trajectory that has some, as a list.
SELECT
  trace_id AS score_trace,
  array_agg({
    'name': name, 'value': value, 'label': label, 'comment': comment, 'origin': origin, 'source': source,
    'time_ns': time_ns, 'score_trace_id': score_trace_id, 'score_span_id': score_span_id
  }) AS scores
FROM newest_scores
GROUP BY trace_id
