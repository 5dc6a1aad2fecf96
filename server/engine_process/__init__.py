"""Several fronts and engine processes: the second form of the `Engine` interface, and the supervisor above them."""
