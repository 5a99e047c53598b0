module otel-rollout.test/otlpjsonfile

go 1.25.0

require (
	github.com/open-telemetry/opentelemetry-collector-contrib/pkg/stanza v0.159.0
	go.opentelemetry.io/collector/component v1.65.0
	go.opentelemetry.io/collector/consumer v1.65.0
	go.opentelemetry.io/collector/pdata v1.65.0
	go.opentelemetry.io/collector/receiver v1.65.0
)
