-- Start times that several rows have: rows of one span, or spans that began in one nanosecond.
SELECT start_ns FROM recorded_spans GROUP BY start_ns HAVING count(*) > 1
