-- Every row of the table, also a span that was delivered twice.
SELECT * FROM stored_rows
