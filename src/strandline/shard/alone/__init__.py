"""Shards used by themselves, without a database."""
