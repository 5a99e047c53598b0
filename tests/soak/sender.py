"""The OTLP exporter, which tells a :class:`tests.soak.target.Target` its process."""

import os
from typing import Any

from otel_rollout_otlp import OtlpSpanExporter
from tests.soak.target import SENDER


class SayingWho(OtlpSpanExporter):
    """Sends its process id along."""

    def __init__(self, **options: Any) -> None:
        super().__init__(headers={SENDER: str(os.getpid())}, **options)
