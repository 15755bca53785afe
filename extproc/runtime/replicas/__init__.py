"""Several active replicas on one pool: capacity leased through Redis, and a warm standby.

`letters` encodes what they exchange, `store` keeps it in Redis, `agent` is one replica's loop, `leader`
the allocator's part of it. Decisions about requests stay in the core; none of this is on the request path.
"""
