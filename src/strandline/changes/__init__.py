"""What happened in a span of times: read, compared, and given out."""
