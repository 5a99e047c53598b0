"""Begin trajectories one after another, and send a span of each to the receiver at once."""

import json
import sys
import urllib.request

import otel_rollout
from otel_rollout import child_environment, rollout_trace_attr
from tests.receiver.support import json_request, json_span

if __name__ == "__main__":
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for index in range(int(sys.argv[1])):
        with rollout_trace_attr(step=3, sample_index=index, rollout_n=0):
            variables = child_environment()
            span = json_span(index + 1, traceId=variables["TRACEPARENT"].split("-")[1])
            token = variables["OTEL_EXPORTER_OTLP_HEADERS"].partition("%20")[2]
            headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
            url = f"{variables['OTEL_EXPORTER_OTLP_ENDPOINT']}/v1/traces"
            request = urllib.request.Request(url, json.dumps(json_request(span)).encode(), headers)
            opener.open(request, timeout=60).close()
        print(json.dumps(variables), flush=True)
    sys.stdin.read()
    print(otel_rollout.shutdown(timeout=60).summary(), flush=True)
