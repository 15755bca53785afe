"""Pure description of load: arrivals, lengths, traces; shared by the simulator and the bench."""
