-- The tool calls of each trace that cannot be parsed, if it has some. One is:
--
-- - a failed call of a parser: extract_tool_calls of verl's parsers (the integration marks it when the parser logs that it
--   drops a call) and of the demo's, or parse_tool_call;
-- - a tool that the OpenAI Agents SDK did not call, because the arguments are no JSON;
-- - a model call that Gemini ends with MALFORMED_FUNCTION_CALL.
--
-- A parser that takes a broken call for plain text, without an error or a log record, leaves no such span. The check
-- tool_calls_unparsable of health reads the texts of replies too.
SELECT trace_id AS unparsed_trace, count(*) AS unparsed
FROM (
  SELECT trace_id
  FROM spans
  WHERE status = 'error' AND (
    lower(name) LIKE '%extract_tool_calls%' OR lower(name) LIKE '%parse_tool_call%'
    OR (kind = 'TOOL' AND error_message LIKE 'Invalid JSON input for tool%')
  )
  UNION ALL
  SELECT trace_id FROM counted_calls WHERE kind = 'LLM' AND lower(finish_reason) LIKE '%malformed_function_call%'
) AS found
GROUP BY trace_id
