"""What the external processor costs: Envoy alone, with a processor that does nothing, and with ours."""
