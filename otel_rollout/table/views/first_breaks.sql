-- The first broken prefix of each trace that has one.
SELECT break_trace AS trace_id, break_turn, break_token, break_removed, break_added, break_kind FROM break_figures
