-- The newest score of each name of each trajectory, from its list.
SELECT
  trace_id, score['name'] AS name, score['value'] AS value, score['label'] AS label, score['comment'] AS comment,
  score['origin'] AS origin, score['source'] AS source, score['time_ns'] AS time_ns,
  score['score_trace_id'] AS score_trace_id, score['score_span_id'] AS score_span_id
FROM (SELECT trace_id, unnest(scores) AS score FROM merged_rows) AS given
