-- How the replies of each trajectory ended.
SELECT
  trace_id, coalesce(replies_ended, 0) AS replies_ended, coalesce(truncated, 0) AS truncated,
  coalesce(unparsed, 0) AS unparsed
FROM merged_rows
