"""Sans-IO state machine of one ext_proc stream: one HTTP request and its response."""
