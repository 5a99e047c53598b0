-- What a check of health has to know of each model call that is of no other run's trajectory. Calls in an evaluator and of
-- sub-trajectories are not the trajectory's own; siblings are compared by their own calls. Control tokens of chat
-- templates are never part of a message; tokens of tool calls are not among them. Text of token ids may end with those
-- that end a turn, and a reply of them alone is empty.
SELECT
  trace_id, span_id, parent_span_id, start_ns, tokens_in, tokens_out, continues, shared, turn_length, break_kind,
  messages_system, messages_assistant, messages_system + messages_user + messages_assistant + messages_tool AS messages,
  CASE WHEN continues IS NULL AND messages_assistant > 0 THEN input END AS held_in,
  CASE
    WHEN length(reply) < 48 THEN '"' || escaped || '"'
    WHEN escaped <> '' THEN right(escaped, 48)
  END AS ending,
  coalesce(reply LIKE '%</think>%', false) AS has_thought,
  coalesce(input LIKE '%</think>%' OR input LIKE '%"reasoning%' OR input LIKE '%"thinking%', true) AS tells_thought,
  coalesce(path, root_path) = root_path AND coalesce(attributes, '') NOT LIKE '%"rollout.in_evaluator":true%' AS is_own,
  octet_length(reply) AS reply_bytes, md5(coalesce(reply, output, '')) AS reply_hash,
  reached_limit OR tokens_out >= max_tokens AS is_cut, has_ids,
  split_part(split_part(coalesce(resource, ''), '"rollout.segment.id":"', 2), '.', 1) AS writer,
  (finish_reason IS NOT NULL AND finish_reason <> 'completed')
    OR (status <> 'error' AND tokens_out IS NOT NULL AND max_tokens IS NOT NULL) AS has_end,
  status <> 'error' AND (reply IS NULL OR regexp_like(reply, '^((' || control || ')|\s)*$')) AND CASE
    WHEN output IS NULL THEN tokens_out = 0
    WHEN has_ids THEN tokens_out <= 1
    ELSE NOT regexp_like(output, 'tool_call|function_call|tool_use|tool-call')
  END AS is_empty,
  status <> 'error' AND (reply IS NOT NULL OR output IS NOT NULL OR tokens_out = 0) AS has_reply,
  reply IS NOT NULL OR messages_user IS NOT NULL AS has_text,
  coalesce(regexp_like(reply, '((' || control || ')\s*)+[^\s<\[]'), false)
    OR (continues IS NULL AND messages_user IS NOT NULL
      AND coalesce(regexp_like(input, '((' || control || ')\s*)+[^\s<\[]'), false)) AS has_special
FROM (
  SELECT
    call.*, root.path AS root_path,
    replace(replace(replace(trim(call.reply), '\', '\\'), '"', '\"'), chr(10), '\n') AS escaped,
    coalesce(
      regexp_like(call.output, '"(token_ids|response_ids|output_ids|completion_ids)"|^\[\s*[0-9]+\s*[],]'), false
    ) AS has_ids,
    CASE WHEN call.finish_reason IS NULL OR call.finish_reason = 'completed' THEN
      TRY_CAST(regexp_match(call.attributes, '"gen_ai.request.max_tokens":([0-9]+)')[1] AS BIGINT)
    END AS max_tokens,
    '<\|(im_start|im_end|im_sep|endoftext|eot_id|eom_id|begin_of_text|end_of_text|start_header_id|end_header_id|'
      || 'endofprompt|fim_prefix|fim_middle|fim_suffix|vision_start|vision_end|assistant|user|system|end)\|>'
      || '|<(start|end)_of_turn>|<\|?(bos|eos|pad|unk)\|?>|</s>|\[/?INST\]|<<SYS>>|<｜(begin|end)▁of▁sentence｜>'
      AS control
  FROM roots AS root JOIN counted_calls AS call ON root.trace_id = call.trace_id
  WHERE call.kind = 'LLM' AND call.run_id IS NOT DISTINCT FROM root.run_id
) AS call
