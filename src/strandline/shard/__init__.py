"""One shard: the only code that does I/O on state."""
