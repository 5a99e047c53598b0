-- Trace and start time of each span that has several rows, from the lists of the traces.
SELECT named_trace AS trace_id, unnest(repeated) AS start_ns FROM merged_traces
