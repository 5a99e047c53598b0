-- Traces whose root span is not in the table.
SELECT trace_id FROM spans GROUP BY trace_id HAVING NOT bool_or(is_root)
