"""The only package besides runtime that knows protobuf: messages, and their codec to exchange values."""
