-- Start times of spans that have several rows.
SELECT DISTINCT start_ns FROM repeated_spans
