"""Who is in the pool: one module per kind of source, and `membership`, which joins them."""
