"""The configurator of `opentelemetry-distro`, which lags behind the newest SDK."""

from opentelemetry.sdk._configuration import _OTelSDKConfigurator as Configurator

__all__ = ["Configurator"]
