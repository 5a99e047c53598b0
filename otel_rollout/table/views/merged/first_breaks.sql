-- The first broken prefix of each trajectory that has one.
SELECT trace_id, break_turn, break_token, break_removed, break_added, break_kind
FROM merged_rows
WHERE break_token IS NOT NULL
