// An agent in JavaScript, which knows nothing of otel-rollout and exports its spans itself.
//
//     node agent.mjs "What do 3 apples and 4 pears cost?"
//
// It asks the model at OPENAI_BASE_URL, calls the tools that the model names, and prints the answer. The spans
// go where OTEL_EXPORTER_OTLP_ENDPOINT says. ../node_agent.py starts it in a trajectory.

import { context, propagation, ROOT_CONTEXT, SpanKind, SpanStatusCode, trace } from "@opentelemetry/api";
import { BatchSpanProcessor, NodeTracerProvider } from "@opentelemetry/sdk-trace-node";

// The exporters read the endpoint and the headers from the environment, but not the protocol.
const encoding = process.env.OTEL_EXPORTER_OTLP_PROTOCOL === "http/json" ? "http" : "proto";
const { OTLPTraceExporter } = await import(`@opentelemetry/exporter-trace-otlp-${encoding}`);

const provider = new NodeTracerProvider({ spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter())] });
provider.register();
// The SDK does not read TRACEPARENT. These two lines join the trajectory, with `context.with` at the end.
const carrier = { traceparent: process.env.TRACEPARENT, tracestate: process.env.TRACESTATE };
const trajectory = propagation.extract(ROOT_CONTEXT, carrier);

const tracer = trace.getTracer("shop-agent", "1.0.0");
const model = process.env.OPENAI_MODEL ?? "shop";
const prices = { apples: 2, pears: 3, plums: 5, melons: 7 };
const tools = {
  price: ({ item }) => {
    if (!(item in prices)) throw new RangeError(`nobody sells ${item}`);
    return prices[item];
  },
  calculate: ({ expression }) =>
    expression.split("+").reduce((sum, term) => sum + term.split("*").reduce((left, right) => left * right, 1), 0),
};
const offered = Object.keys(tools).map((name) => ({ type: "function", function: { name } }));

// Runs `body` in a span, which ends as an error if `body` throws.
function traced(name, kind, attributes, body) {
  return tracer.startActiveSpan(name, { kind, attributes }, async (span) => {
    try {
      return await body(span);
    } catch (error) {
      span.recordException(error);
      span.setStatus({ code: SpanStatusCode.ERROR, message: error.message });
      throw error;
    } finally {
      span.end();
    }
  });
}

function askModel(messages) {
  const about = { "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": model };
  return traced(`chat ${model}`, SpanKind.CLIENT, about, async (span) => {
    const headers = { "content-type": "application/json", authorization: `Bearer ${process.env.OPENAI_API_KEY}` };
    propagation.inject(context.active(), headers); // the engine's spans join the trajectory, too
    const body = JSON.stringify({ model, messages, tools: offered });
    const response = await fetch(`${process.env.OPENAI_BASE_URL}/chat/completions`, { method: "POST", headers, body });
    if (!response.ok) throw new Error(`the model answered ${response.status}`);
    const { choices, usage, model: answeredBy } = await response.json();
    span.setAttributes({
      "gen_ai.response.model": answeredBy,
      "gen_ai.response.finish_reasons": [choices[0].finish_reason],
      "gen_ai.usage.input_tokens": usage.prompt_tokens,
      "gen_ai.usage.output_tokens": usage.completion_tokens,
      "input.value": JSON.stringify({ messages }),
      "output.value": JSON.stringify(choices[0].message),
    });
    return choices[0].message;
  });
}

async function callTool({ id, function: { name, arguments: given } }) {
  const about = { "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.call.id": id };
  const content = await traced(`execute_tool ${name}`, SpanKind.INTERNAL, about, async (span) => {
    span.setAttribute("gen_ai.tool.call.arguments", given);
    const result = String(tools[name](JSON.parse(given)));
    span.setAttribute("gen_ai.tool.call.result", result);
    return result;
  }).catch((error) => `Error: ${error.message}`); // the model may try something else
  return { role: "tool", tool_call_id: id, content };
}

const about = { "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "shop-agent" };
const answer = await context.with(trajectory, () =>
  traced("invoke_agent shop-agent", SpanKind.INTERNAL, about, async (span) => {
    const messages = [{ role: "user", content: process.argv[2] }];
    for (let turn = 1; turn <= 8; turn++) {
      const message = await askModel(messages);
      span.addEvent("turn", { turn, "tool_calls": message.tool_calls?.length ?? 0 });
      if (!message.tool_calls) return message.content;
      messages.push(message);
      for (const call of message.tool_calls) messages.push(await callTool(call));
    }
    throw new Error("no answer after 8 turns");
  }),
).finally(() => provider.shutdown()); // sends the last spans
console.log(answer);
