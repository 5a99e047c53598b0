"""What exporters are made of.

Public: exporters of other packages may use it, see docs/exporters.md.

- ``api``: how an export failed, and the optional abilities of an exporter
- ``base``: the base class: one export at a time, no exception, a reason for each failure
- ``config``: an argument over its environment variables; masking of credentials
- ``http``: requests, HTTP status → kind of failure, Retry-After
- ``batching``: requests bounded in bytes and entries
- ``projects``, ``encodable``: spans by project; spans that protobuf can hold
- ``registry``: exporters by name
"""
