"""Pure parsers of foreign text: OpenAI bodies, server-sent events, Prometheus metrics."""
