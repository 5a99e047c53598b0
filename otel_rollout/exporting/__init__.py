"""Build exporters from common parts.

The package is public: exporters of other packages may import from it, see docs/extending.md.

- ``api``: how an export failed, and the optional abilities of an exporter
- ``base``: the base class: one export at a time, no exception, a reason for each failure
- ``arguments``: an argument over its environment variables; masking of credentials
- ``http``: requests, HTTP status → kind of failure, Retry-After
- ``batching``: requests bounded in bytes and entries
- ``projects``: spans grouped by project
- ``encodable``: text that protobuf can encode
- ``protobuf``: spans as an OTLP request
- ``entry_points``: exporters by name
- ``conformance``: tests of an exporter, for pytest
- ``spool_exporter``: the exporter ``spool``, which leaves spans on disk
"""
