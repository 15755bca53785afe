"""llm-d-router's EndpointPickerConfig read into our configuration; what has no counterpart is named."""
