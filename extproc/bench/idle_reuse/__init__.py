"""The one 503 in 1,440: requests sent down a connection that the server is just closing."""
