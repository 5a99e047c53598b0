-- The roots, with further columns.
SELECT * FROM merged_rows
