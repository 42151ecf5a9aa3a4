"""Many shards, one moment: the txns shard, its entries, and how they get into the data shards."""
