"""A question becomes rows."""
