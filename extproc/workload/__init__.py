"""Pure description of load, shared by the simulator, the bench and the emulator's tests; knows no clock."""
