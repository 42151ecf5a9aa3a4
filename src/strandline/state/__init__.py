"""The shard's state machine: pure functions over immutable values."""
