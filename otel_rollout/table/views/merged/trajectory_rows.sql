-- Each trajectory with all its figures.
SELECT * FROM merged_rows
