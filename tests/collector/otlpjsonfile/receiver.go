// Package otlpjsonfile stands in for contrib's receiver otlp_json_file in tests.
//
// The published otelcol-contrib has the real one. Its module cannot be had everywhere that tests run, while what it
// is made of can: contrib's reader of files, which file_log has too, and the Collector's decoder of OTLP/JSON. Put
// together here, they let collector-config/agent-tail.yaml run as it is.
package otlpjsonfile

import (
	"context"
	"errors"

	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/stanza/adapter"
	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/stanza/fileconsumer"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
)

// Config is the file reader's, and where to remember how far it has read.
type Config struct {
	fileconsumer.Config `mapstructure:",squash"`
	Storage             *component.ID `mapstructure:"storage"`
}

// NewFactory is what the Collector Builder asks for.
func NewFactory() receiver.Factory {
	return receiver.NewFactory(
		component.MustNewType("otlp_json_file"),
		func() component.Config { return &Config{Config: *fileconsumer.NewConfig()} },
		receiver.WithTraces(newTraces, component.StabilityLevelDevelopment),
	)
}

func newTraces(
	_ context.Context, settings receiver.Settings, configuration component.Config, next consumer.Traces,
) (receiver.Traces, error) {
	config := configuration.(*Config)
	files, err := config.Build(settings.TelemetrySettings, handOn(next))
	if err != nil {
		return nil, err
	}
	return &traces{id: settings.ID, storage: config.Storage, files: files}, nil
}

// handOn decodes lines one by one: one that is broken, or refused, takes no other with it. The reader logs the
// error and goes on behind the line, as it does with the real receiver.
func handOn(next consumer.Traces) func(context.Context, [][]byte, map[string]any, int64, []int64) error {
	var decoder ptrace.JSONUnmarshaler
	return func(ctx context.Context, lines [][]byte, _ map[string]any, _ int64, _ []int64) error {
		var failures error
		for _, line := range lines {
			spans, err := decoder.UnmarshalTraces(line)
			if err == nil && spans.ResourceSpans().Len() > 0 {
				err = next.ConsumeTraces(ctx, spans)
			}
			failures = errors.Join(failures, err)
		}
		return failures
	}
}

// traces starts and stops the reader, which has to know its storage.
type traces struct {
	id      component.ID
	storage *component.ID
	files   *fileconsumer.Manager
}

func (t *traces) Start(ctx context.Context, host component.Host) error {
	storage, err := adapter.GetStorageClient(ctx, host, t.storage, t.id)
	if err != nil {
		return err
	}
	return t.files.Start(storage)
}

func (t *traces) Shutdown(context.Context) error {
	return t.files.Stop()
}
