"""A server of completions over HTTP, with the extra [serving].

app         `create_app`, the routes
responses   what is sent: one body, or server-sent events
completion  the content of answers
fields      the fields of requests
limits      the size of bodies
metrics     numbers for Prometheus
states      states that clients continue
engine      the thread that owns the batch
"""

from linattn_models.serving.app import create_app

__all__ = ["create_app"]
